"""The tree drawn in the module's docstring is the tree that exists."""

import re
from typing import NamedTuple

import pytest

from gatepost import errors
from gatepost.errors import GatepostError


class Entry(NamedTuple):
    parent: str
    name: str
    wire: tuple[int, str] | None  # status and code, where the drawing names them


LINE = re.compile(r"(?P<indent>[│├└─ ]*)(?P<name>[A-Z]\w+)(?: +(?P<status>\d{3}) (?P<code>\w+))?")


def drawn() -> list[Entry]:
    entries, ancestors = [], [""]
    for line in (errors.__doc__ or "").split("\n\n")[1].splitlines():
        match = LINE.match(line)
        assert match, line
        depth = len(match["indent"]) // 4
        ancestors[depth + 1 :] = [match["name"]]
        wire = (int(match["status"]), match["code"]) if match["code"] else None
        entries.append(Entry(ancestors[depth], match["name"], wire))
    return entries


def real(cls: type[GatepostError] = GatepostError, parent: str = "") -> list[Entry]:
    # A module may tell apart errors of its own that are the same on the wire.
    public = [sub for sub in cls.__subclasses__() if sub.__module__ == errors.__name__]
    below = [entry for sub in public for entry in real(sub, cls.__name__)]
    return [Entry(parent, cls.__name__, (cls.status, cls.code)), *below]


def test_drawing_and_classes_have_the_same_tree() -> None:
    assert sorted(e[:2] for e in drawn()) == sorted(e[:2] for e in real())


def test_drawing_names_the_real_codes_and_statuses() -> None:
    actual = {entry.name: entry.wire for entry in real()}
    wired = {entry.name: entry.wire for entry in drawn() if entry.wire}
    assert len(wired) > 10
    assert wired == {name: actual[name] for name in wired}


def test_errors_without_a_drawn_status_answer_500() -> None:
    actual = {entry.name: entry.wire for entry in real()}
    assert {actual[e.name][0] for e in drawn() if not e.wire} == {500}  # type: ignore[index]


def test_codes_are_unique_and_each_leads_back_to_its_class() -> None:
    codes = [entry.wire[1] for entry in real() if entry.wire]
    assert len(codes) == len(set(codes))
    for code in codes:
        assert errors.error_from_code(code, "why").code == code


def test_an_unknown_code_stays_a_gatepost_error() -> None:
    assert type(errors.error_from_code("from_the_future", "why")) is GatepostError


@pytest.mark.parametrize("retry_after", [None, 1.5])
def test_an_error_carries_its_message_and_when_to_retry(retry_after: float | None) -> None:
    error = errors.RateLimited("slow down", retry_after=retry_after)
    assert (error.message, str(error)) == ("slow down", "slow down")
    assert error.retry_after == retry_after
