"""Reading a legacy document from a file: JSON and Yjs, told by their bytes."""

import builtins
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.errors import ConfigError, GatepostError, InvalidRequest
from gatepost.migration import (
    AgentNames,
    LegacyDump,
    LegacyItem,
    RejectedItem,
    parse_dump,
    read_dump,
)
from tests.migration.tools import message

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def written(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents that the real Yjs wrote."""
    folder = tmp_path_factory.mktemp("yjs")
    script = installed / "legacy.mjs"
    script.write_bytes((HERE / "legacy.mjs").read_bytes())
    subprocess.run(["node", script, "write", folder], check=True, timeout=60)
    return folder


def items(dump: LegacyDump) -> list[LegacyItem]:
    return [one for one in dump.parse_items(AgentNames()) if isinstance(one, LegacyItem)]


def rejects(dump: LegacyDump) -> dict[str, RejectedItem]:
    return {one.id: one for one in dump.parse_items(AgentNames()) if isinstance(one, RejectedItem)}


def test_a_real_yjs_document_is_read_with_nested_maps_and_texts(written: Path) -> None:
    dump = read_dump(written / "dump.bin")
    found = {(item.id, item.to): item for item in items(dump)}
    assert found.keys() == {
        ("plain", "bob"),
        ("nested", "bob"),
        ("nested", "cat"),
        ("read", "bob"),
        ("t1", "bob"),
    }
    plain, nested = found["plain", "bob"], found["nested", "cat"]
    assert repr(plain.payload["n"]) == "5" and plain.payload["list"] == [1, "zwei", None]
    assert nested.payload == "hello wörld 😀"
    assert (nested.corr_id, nested.created_at) == ("c-1", 1_700_000_001_000)
    assert nested.record["meta"] == {"deep": {"er": 1}}
    assert found["read", "bob"].done
    task = found["t1", "bob"].payload["legacyTask"]
    assert (task["title"], task["description"]) == ("build", "it")
    assert dump.others == ["nodes"]


def test_a_document_and_its_json_export_are_the_same_to_us(written: Path) -> None:
    binary, exported = read_dump(written / "dump.bin"), read_dump(written / "dump.json")

    def by_key(dump: LegacyDump) -> dict[str, LegacyItem]:
        return {item.key: item for item in items(dump)}

    assert by_key(binary) == by_key(exported)
    assert len(by_key(binary)) == 5


def test_what_yjs_can_hold_and_json_cannot_is_rejected_one_by_one(written: Path) -> None:
    dump = read_dump(written / "odd.bin")
    assert {id: one.code for id, one in rejects(dump).items()} == {
        "bytes": "not_json",
        "nan": "not_json",
        "element": "not_json",
        "subdoc": "not_json",
    }
    assert "late" in {item.id for item in items(dump)}


@pytest.mark.parametrize(
    ("name", "why"),
    [("part.bin", "builds on others"), ("v2.bin", "version 1"), ("list.bin", "is a list")],
)
def test_a_dump_that_would_lose_something_is_refused(written: Path, name: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        read_dump(written / name)


def test_a_document_with_as_many_authors_as_a_brace(written: Path) -> None:
    assert (written / "crowd.bin").read_bytes().startswith(b"{")
    assert len(items(read_dump(written / "crowd.bin"))) == 123


def test_only_one_kind(written: Path) -> None:
    assert {item.kind for item in items(read_dump(written / "dump.bin", "tasks"))} == {"tasks"}
    assert {item.kind for item in items(read_dump(written / "dump.json", "messages"))} == {
        "messages"
    }


def test_without_pycrdt_json_is_read_and_yjs_says_what_to_install(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = builtins.__import__

    def without(
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        if name == "pycrdt":
            raise ImportError(name)
        return really(name, globals, locals, fromlist or (), level)

    monkeypatch.setattr(builtins, "__import__", without)
    assert items(read_dump(written / "dump.json"))
    with pytest.raises(ConfigError, match=r"gatepost\[migration\]"):
        read_dump(written / "dump.bin")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "neither JSON nor"),
        (b"hello", "neither JSON nor"),
        (b"{", "not JSON"),
        (b'{"a": 1}', "no map of the legacy system"),
        (b'{"messages": []}', "not a map"),
        (b"\x00\x00", "no map of the legacy system"),
        (b'{"messages": {"a": 1, "a": 2}}', "'a' occurs twice"),
        (b'{"messages": ' + b"[" * 100_000, "not JSON"),
    ],
)
def test_what_is_no_dump_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        parse_dump(data)


@given(st.binary() | st.binary().map(lambda data: b"{" + data))
def test_no_bytes_raise_anything_unexpected(data: bytes) -> None:
    try:
        parse_dump(data)
    except GatepostError as error:
        assert error.message


def test_json_may_begin_with_a_mark_and_lack_a_map() -> None:
    text = "\ufeff\n" + json.dumps({"messages": {"1": message(1)}})
    assert [item.id for item in items(parse_dump(text.encode()))] == ["1"]


def test_a_document_that_holds_only_state_is_empty_not_wrong() -> None:
    assert list(parse_dump(b'{"nodes": {}}').iter_records()) == []


def test_half_a_character_rejects_its_record_alone() -> None:
    bad = b'{"from":"a","to":"b","text":"\\ud800"}'
    data = b'{"messages": {"1": ' + bad + b', "2": {"from":"a","to":"b","text":"x"}}}'
    dump = parse_dump(data)
    assert [item.id for item in items(dump)] == ["2"]
    assert rejects(dump).keys() == {"1"}


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot be read"):
        read_dump(tmp_path / "nothing")
