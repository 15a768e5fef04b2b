"""Event ids sort by creation, and no other id can smuggle anything in."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.errors import InvalidId
from gatepost.events import ids
from tests.events.fakes import StillClock

CHECKS: list[tuple[Callable[[str], str], Any, int]] = [
    (ids.check_agent_id, ids.AgentId, 128),
    (ids.check_node_id, ids.NodeId, 128),
    (ids.check_msg_id, ids.MsgId, 256),
]


@given(st.integers(0, 2**48 - 1))
def test_id_is_a_version_7_uuid_of_its_millisecond(now: int) -> None:
    uuid = UUID(ids.new_event_id(StillClock(now)))
    assert (uuid.version, uuid.variant) == (7, "specified in RFC 4122")
    assert uuid.int >> 80 == now


@given(st.lists(st.integers(-(10**6), 2**47), min_size=2))
def test_ids_grow_whatever_the_clock_does(times: list[int]) -> None:
    clock = StillClock()
    source, made = ids.EventIdGenerator(clock), []
    for clock.time in times:
        made += [source.next_id(), source.next_id()]
    assert made == sorted(set(made))


def test_a_spent_counter_borrows_the_next_millisecond() -> None:
    class Spent(StillClock):
        def random(self, size: int) -> bytes:
            return b"\xff" * size

    source = ids.EventIdGenerator(Spent(5))
    source.next_id()
    source._last |= (1 << 74) - 1
    last = ids._uuid7_text(source._last)
    after = source.next_id()
    assert after > last
    assert UUID(after).int >> 80 == 6


@pytest.mark.parametrize("now", [0, 7])
def test_two_sources_in_one_millisecond_differ(now: int) -> None:
    assert ids.new_event_id(StillClock(now, seed=1)) != ids.new_event_id(StillClock(now, seed=2))


def test_a_thread_cannot_overtake_another_in_mid_draw() -> None:
    drawing, overtaken = Event(), Event()

    class SlowFirstDraw(StillClock):
        def random(self, size: int) -> bytes:
            if drawing.is_set():
                return b"\xff" * size
            drawing.set()
            overtaken.wait(0.1)
            return bytes(size)

    source = ids.EventIdGenerator(SlowFirstDraw())
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(source.next_id)
        drawing.wait()
        fast = source.next_id()
        overtaken.set()
    assert UUID(fast).int == UUID(slow.result()).int + 1


@given(st.integers(0, 2**48 - 1), st.integers())
def test_binary_form_round_trips_and_sorts_alike(now: int, seed: int) -> None:
    source = ids.EventIdGenerator(StillClock(now, seed))
    one, two = source.next_id(), source.next_id()
    assert ids.format_event_id(ids.parse_event_id(one)) == one
    assert ids.parse_event_id(one) < ids.parse_event_id(two)
    assert ids.parse_event_id(one) == UUID(one).bytes


@pytest.mark.parametrize(
    "text",
    [
        "",
        "e1",
        "0190163D-8694-739B-AEA5-966C26F8AD91",
        "0190163d8694739baea5966c26f8ad91",
        "0190163d-8694-439b-aea5-966c26f8ad91",
        "0190163d-8694-739b-1ea5-966c26f8ad91",
        "0190163d-8694-739b-aea5-966c26f8ad91\n",
    ],
)
def test_only_the_canonical_text_of_a_uuid7_is_an_event_id(text: str) -> None:
    with pytest.raises(InvalidId, match="UUIDv7"):
        ids.parse_event_id(text)


@pytest.mark.parametrize("data", [b"", bytes(16), bytes(15), b"\xff" * 17])
def test_other_bytes_are_no_event_id(data: bytes) -> None:
    with pytest.raises(InvalidId):
        ids.format_event_id(data)


@pytest.mark.parametrize(("check", "annotated", "longest"), CHECKS)
def test_plain_ids_pass_unchanged(
    check: Callable[[str], str], annotated: Any, longest: int
) -> None:
    for value in ("a", "0", "vps-jane", "Lab.2_x", "a" * longest):
        assert check(value) == value
        assert msgspec.convert(value, annotated) == value


@pytest.mark.parametrize(("check", "annotated", "longest"), CHECKS)
def test_dangerous_ids_are_refused_by_check_and_type_alike(
    check: Callable[[str], str], annotated: Any, longest: int
) -> None:
    bad = [
        "",
        ".",
        "..",
        "-a",
        "_a",
        "a/b",
        "a\\b",
        "a b",
        "a\n",
        "a\0",
        "é",
        "٣",
        "a" * (longest + 1),
    ]
    for value in bad:
        with pytest.raises(InvalidId, match="starting with a letter or digit"):
            check(value)
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(value, annotated)


def test_message_ids_allow_what_mail_systems_use() -> None:
    assert ids.check_msg_id("1:retry+2@host") == "1:retry+2@host"
    with pytest.raises(InvalidId):
        ids.check_agent_id("1:retry")


def test_a_refusal_shows_only_the_start_of_a_long_id() -> None:
    with pytest.raises(InvalidId) as caught:
        ids.check_node_id("x" * 5000)
    assert len(caught.value.message) < 200


def test_digest_is_lower_case_sha256() -> None:
    good = "sha256:" + "0a" * 32
    assert ids.check_digest(good) == good
    for bad in (good.upper(), good[:-1], good + "\n", "0a" * 32, "sha256:../" + "a" * 61):
        with pytest.raises(InvalidId, match="sha256"):
            ids.check_digest(bad)
