"""The schema is all that readers need, and it needs nothing of ours."""

import subprocess
import sys
from pathlib import Path

import gatepost
from gatepost.archive.schema import EVENT_SCHEMA, SCHEMA_VERSION

SOURCE = Path(gatepost.__file__).parents[1]


def test_it_needs_pyarrow_and_nothing_of_the_gateway() -> None:
    code = (
        "import sys, gatepost.archive.schema\n"
        "print([m for m in ('apsw', 'nacl', 'msgspec', 'numpy.fft') if m in sys.modules])"
    )
    env = {"PYTHONPATH": str(SOURCE)}
    assert subprocess.check_output([sys.executable, "-c", code], env=env, text=True) == "[]\n"


def test_its_version_travels_with_it() -> None:
    assert EVENT_SCHEMA.metadata == {b"gatepost.schema": str(SCHEMA_VERSION).encode()}


def test_only_what_every_event_has_is_required() -> None:
    required = {field.name for field in EVENT_SCHEMA if not field.nullable}
    assert {"seq", "event_id", "kind", "created_at", "digest", "incarnation"} <= required
    assert not {"to_node", "ref_id", "body", "chain", "status"} & required
