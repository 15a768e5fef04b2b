"""The file old readers look at."""

import json
from pathlib import Path

import pytest

from gatepost.errors import InvalidRequest
from gatepost.migration import read_dump
from gatepost.migration.legacy_file import mirrored_ids, open_legacy_file
from tests.migration.tools import message


@pytest.fixture(params=["legacy.json", "legacy.ydoc"])
def path(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return tmp_path / str(request.param)


def test_records_are_added_once_and_never_overwritten(path: Path) -> None:
    open_legacy_file(path).add_records({"messages": {"a": message(1)}})
    open_legacy_file(path).add_records(
        {"messages": {"a": message(2, status="read"), "b": message(3)}}
    )
    found = read_dump(path).records["messages"]
    assert found == {"a": message(1), "b": message(3)}


def test_only_what_carries_an_event_id_was_mirrored(path: Path) -> None:
    assert mirrored_ids(path) == set()
    open_legacy_file(path).add_records(
        {"messages": {"a": message(1), "b": message(2, gatepostEventId="e")}}
    )
    assert mirrored_ids(path) == {"b"}


def test_a_file_that_cannot_be_read_is_left_alone(path: Path) -> None:
    path.write_bytes(b"{ nonsense")
    with pytest.raises(InvalidRequest):
        open_legacy_file(path).add_records({"messages": {"a": message(1)}})
    assert path.read_bytes() == b"{ nonsense"


def test_what_else_is_in_the_document_stays(tmp_path: Path) -> None:
    path = tmp_path / "legacy.json"
    path.write_text(json.dumps({"nodes": {"n": {"tier": "edge"}}, "tasks": {"t": {"title": "ü"}}}))
    open_legacy_file(path).add_records({"messages": {"a": message(1)}})
    document = json.loads(path.read_text())
    assert document.pop("messages").keys() == {"a"}
    assert document == {"nodes": {"n": {"tier": "edge"}}, "tasks": {"t": {"title": "ü"}}}


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="is not a folder"):
        open_legacy_file(tmp_path / "no" / "x.json")
