"""Nothing in an outbox can be changed, dropped, added or moved without the head noticing."""

from hashlib import sha256

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.errors import ChainError
from gatepost.events.chain import (
    ChainHead,
    event_digest,
    extend_chain,
    genesis_chain,
    sign_head,
    verify_group,
    verify_head,
)
from gatepost.events.encryption import NodeKey
from tests.events.fakes import StillClock

KEY = NodeKey.generate(StillClock())
OTHER = NodeKey.generate(StillClock(seed=1))
START = genesis_chain("vps-jane", "i1")
DIGESTS = [event_digest(b"event %d" % n) for n in range(4)]

events = st.lists(st.binary(max_size=20), min_size=1, max_size=8)


def signed(digests: list[bytes], first: int = 1, previous: bytes = START) -> ChainHead:
    return sign_head(
        KEY,
        node="vps-jane",
        incarnation="i1",
        first=first,
        last=first + len(digests) - 1,
        chain=extend_chain(previous, digests),
    )


def test_the_chain_is_the_documented_one() -> None:
    link = sha256(START + sha256(b"event 0").digest()).digest()
    assert extend_chain(START, DIGESTS[:1]) == link
    assert extend_chain(START, DIGESTS[:2]) == sha256(link + DIGESTS[1]).digest()
    assert extend_chain(START, []) == START


def test_each_outbox_and_incarnation_has_its_own_start() -> None:
    starts = [("a", "b"), ("a", "c"), ("b", "b"), ("ab", ""), ("", "ab")]
    assert len({genesis_chain(*names) for names in starts}) == len(starts)


@given(events, events)
def test_groups_verify_one_after_the_other(one: list[bytes], two: list[bytes]) -> None:
    first, second = [event_digest(e) for e in one], [event_digest(e) for e in two]
    middle = verify_group(START, first, signed(first), KEY.public)
    head = signed(second, len(first) + 1, middle)
    assert verify_group(middle, second, head, KEY.public) == extend_chain(START, first + second)


@pytest.mark.parametrize(
    "digests",
    [
        DIGESTS[:3],
        DIGESTS[1:],
        [*DIGESTS, DIGESTS[0]],
        [DIGESTS[1], DIGESTS[0], *DIGESTS[2:]],
        [*DIGESTS[:3], event_digest(b"forged")],
        [*DIGESTS[:3], DIGESTS[3][:31]],
        [*DIGESTS[:2], DIGESTS[2] + DIGESTS[3][:1], DIGESTS[3][1:]],
        [],
    ],
)
def test_an_altered_group_is_refused_by_node_and_seq(digests: list[bytes]) -> None:
    with pytest.raises(ChainError, match="vps-jane, seq 5 to 8"):
        verify_group(START, digests, signed(DIGESTS, first=5), KEY.public)


def test_a_head_that_claims_more_events_than_it_chains_is_refused() -> None:
    chain = extend_chain(START, DIGESTS)
    boast = sign_head(KEY, node="vps-jane", incarnation="i1", first=1, last=9, chain=chain)
    with pytest.raises(ChainError, match="4 digests do not cover"):
        verify_group(START, DIGESTS, boast, KEY.public)


def test_a_group_does_not_fit_elsewhere() -> None:
    for start in (genesis_chain("vps-jane", "i2"), DIGESTS[0]):
        with pytest.raises(ChainError):
            verify_group(start, DIGESTS, signed(DIGESTS), KEY.public)


@pytest.mark.parametrize(
    "change",
    [
        {"node": "mbp-jane"},
        {"incarnation": "i2"},
        {"first": 2},
        {"first": 2, "last": 5},
        {"last": 5},
        {"chain": DIGESTS[0]},
        {"node": "vps-janei", "incarnation": "1"},
        {"first": 0},
        {"last": 0},
        {"last": 2**64},
        {"signature": b""},
    ],
)
def test_every_field_of_a_head_is_signed(change: dict[str, object]) -> None:
    head = signed(DIGESTS)
    verify_head(head, KEY.public)
    with pytest.raises(ChainError):
        verify_head(msgspec.structs.replace(head, **change), KEY.public)


def test_every_byte_of_the_signature_counts() -> None:
    head = signed(DIGESTS)
    for i in range(64):
        forged = bytearray(head.signature)
        forged[i] ^= 0x10
        with pytest.raises(ChainError):
            verify_head(msgspec.structs.replace(head, signature=bytes(forged)), KEY.public)


def test_another_nodes_key_does_not_vouch() -> None:
    with pytest.raises(ChainError, match="not signed by this node's key"):
        verify_group(START, DIGESTS, signed(DIGESTS), OTHER.public)


def test_a_signature_made_for_something_else_is_no_head() -> None:
    head = signed(DIGESTS)
    bare = KEY.sign(b"vps-jane" + b"i1" + head.chain)
    with pytest.raises(ChainError):
        verify_head(msgspec.structs.replace(head, signature=bare), KEY.public)


def test_heads_survive_json() -> None:
    head = signed(DIGESTS)
    assert msgspec.json.decode(msgspec.json.encode(head), type=ChainHead) == head
