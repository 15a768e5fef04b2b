"""Proof: one event of a group can be checked without the others, and nothing else passes."""

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gatepost.delivery.frames import CommitGroup, EventsFrame, Incarnation
from gatepost.errors import LinkError
from gatepost.events import (
    Envelope,
    EventIdGenerator,
    NodeKey,
    encode_event,
    event_digest,
    extend_chain,
    genesis_chain,
    sign_head,
)
from gatepost.links.proof import (
    check_incarnations,
    check_relayed_events,
    sign_incarnations,
)
from gatepost.testing import ManualClock

CLOCK = ManualClock(1_800_000_000_000)
KEY = NodeKey.generate(CLOCK)
IDS = EventIdGenerator(CLOCK)
INCARNATIONS: list[Incarnation] = [("one", 1), ("two", 4)]


def event(seq: int) -> bytes:
    return encode_event(
        Envelope(
            event_id=IDS.next_id(), seq=seq, source_node_id="a", source_agent_id="al",
            kind="notice", created_at=0, to_node_id="b",
        )
    )  # fmt: skip


def outbox(*sizes: int) -> tuple[list[bytes], list[CommitGroup]]:
    """An outbox in groups of these sizes, of the first incarnation."""
    events: list[bytes] = []
    groups: list[CommitGroup] = []
    chain = genesis_chain("a", "one")
    for size in sizes:
        first = len(events) + 1
        fresh = [event(first + place) for place in range(size)]
        digests = [event_digest(body) for body in fresh]
        previous, chain = chain, extend_chain(chain, digests)
        head = sign_head(
            KEY, node="a", incarnation="one", first=first, last=first + size - 1, chain=chain
        )
        proof = (previous, chain, head.signature, b"".join(digests))
        groups.append(CommitGroup(head.first, head.last, *proof))
        events += fresh
    return events, groups


def frame(events: list[bytes], groups: list[CommitGroup]) -> EventsFrame:
    return EventsFrame("a", "one", 1, 0, 0, events, groups, "relay")


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.data())
def test_any_choice_of_events_passes_with_the_groups_that_hold_them(
    sizes: list[int], data: st.DataObject
) -> None:
    events, groups = outbox(*sizes)
    chosen = sorted(data.draw(st.sets(st.integers(1, len(events)), min_size=1)))
    needed = [g for g in groups if any(g.first <= seq <= g.last for seq in chosen)]
    said = frame([events[seq - 1] for seq in chosen], needed)
    assert [each.seq for each in check_relayed_events(said, INCARNATIONS, KEY.public)] == chosen


@given(st.lists(st.integers(1, 4), min_size=2, max_size=4), st.data())
def test_without_its_group_an_event_does_not_pass(sizes: list[int], data: st.DataObject) -> None:
    events, groups = outbox(*sizes)
    missing = data.draw(st.integers(0, len(groups) - 1))
    with pytest.raises(LinkError):
        check_relayed_events(
            frame(events, groups[:missing] + groups[missing + 1 :]), INCARNATIONS, KEY.public
        )


@given(st.data())
def test_a_changed_bit_does_not_pass(data: st.DataObject) -> None:
    """Anywhere: in an event, in a digest, in a chain, in a signature."""
    events, groups = outbox(3)
    (group,) = groups
    where = data.draw(st.sampled_from(["event", "previous", "chain", "signature", "digests"]))
    target = bytearray(events[1] if where == "event" else getattr(group, where))
    target[data.draw(st.integers(0, len(target) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    if where == "event":
        events[1] = bytes(target)
    else:
        group = replace(group, **{where: bytes(target)})
    with pytest.raises(LinkError):
        check_relayed_events(frame(events, [group]), INCARNATIONS, KEY.public)


def test_a_group_of_another_key_or_life_does_not_pass() -> None:
    events, groups = outbox(2)
    with pytest.raises(LinkError, match="not signed"):
        check_relayed_events(frame(events, groups), INCARNATIONS, NodeKey.generate(CLOCK).public)
    other = replace(frame(events, groups), incarnation="two", first_seq=4)
    with pytest.raises(LinkError, match="not signed"):
        check_relayed_events(other, INCARNATIONS, KEY.public)


def test_events_do_not_swap_places() -> None:
    events, groups = outbox(2)
    swapped = b"".join(event_digest(body) for body in reversed(events))
    with pytest.raises(LinkError):
        check_relayed_events(frame(events[::-1], groups), INCARNATIONS, KEY.public)
    with pytest.raises(LinkError):
        check_relayed_events(
            frame(events, [replace(groups[0], digests=swapped)]), INCARNATIONS, KEY.public
        )


@pytest.mark.parametrize(
    "incarnations",
    [[("one", 1)], [("one", 1), ("two", 5)], [("two", 1), ("one", 4)], [("one", 1), ("two", 1)]],
)
def test_only_the_source_says_which_incarnations_it_had(incarnations: list[Incarnation]) -> None:
    said = sign_incarnations(KEY, "a", INCARNATIONS)
    check_incarnations(said, KEY.public)
    for lie in (replace(said, incarnations=incarnations), replace(said, source="b")):
        with pytest.raises(LinkError):
            check_incarnations(lie, KEY.public)


def test_lives_out_of_order_do_not_pass_even_if_signed() -> None:
    with pytest.raises(LinkError, match="no order"):
        check_incarnations(sign_incarnations(KEY, "a", [("two", 4), ("one", 1)]), KEY.public)


def test_a_chain_is_made_of_what_it_says() -> None:
    """The check above would be worth nothing if a group could vouch for other events."""
    events, (group,) = outbox(2)
    chain = genesis_chain("a", "one")
    for body in events:
        chain = sha256(chain + sha256(body).digest()).digest()
    assert group.chain == chain
