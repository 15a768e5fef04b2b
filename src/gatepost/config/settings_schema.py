"""The JSON Schema of gatepost.toml, by which editors complete and check the file."""

from pathlib import Path
from typing import Any

import msgspec

from gatepost.config.settings import Settings

SCHEMA_FILE_NAME = "gatepost.schema.json"


def settings_schema() -> dict[str, Any]:
    """The schema of the whole file; a mistyped key is a mistake in it as it is for the gateway."""
    _, definitions = msgspec.json.schema_components(
        [Settings], schema_hook=_path_schema, ref_template="#/$defs/{name}"
    )
    whole = dict(definitions[Settings.__name__])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **whole,
        "title": "gatepost.toml",
        "additionalProperties": False,
        "$defs": {name: each for name, each in definitions.items() if name != Settings.__name__},
    }


def encode_schema() -> bytes:
    text = msgspec.json.format(msgspec.json.encode(settings_schema(), enc_hook=str))
    # Patterns end as in Python; JSON Schema has those of JavaScript.
    return text.replace(rb"\\Z", b"$") + b"\n"


def _path_schema(kind: type) -> dict[str, Any]:
    if kind is not Path:
        raise NotImplementedError
    return {"type": "string", "minLength": 1}
