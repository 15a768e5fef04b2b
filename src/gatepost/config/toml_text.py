"""Settings as TOML text."""

import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import get_type_hints

import msgspec


def section_toml(
    name: str, section: type[msgspec.Struct], chosen: Mapping[str, object] | None = None
) -> str:
    """Write a section: each setting with its description, and its default commented out.

    A setting in `chosen` is set to that value instead.
    """
    lines = [f"# {section.__doc__}", f"[{name}]"]
    hints = get_type_hints(section, include_extras=True)
    defaults = section()
    for key in section.__struct_fields__:
        (meta,) = hints[key].__metadata__
        lines += textwrap.wrap(meta.description, 90, initial_indent="# ", subsequent_indent="# ")
        if chosen is not None and key in chosen:
            lines.append(f"{key} = {toml_value(chosen[key])}")
        else:
            lines.append(f"#{key} = {toml_value(getattr(defaults, key))}")
    return "\n".join(lines) + "\n"


def toml_value(value: object) -> str:
    """Write a value as TOML; a path in the home folder begins with `~`."""
    if isinstance(value, Path):
        home = Path.home()
        value = f"~/{value.relative_to(home)}" if value.is_relative_to(home) else str(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value)
