"""Descriptors of onion services: one that Tor made, and merged ones."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from gatepost.errors import EncryptionError
from gatepost.mesh.onion.onion_blinding import blind_key
from gatepost.mesh.onion.onion_descriptor import (
    MAX_MERGED_POINTS,
    OnionIntroPoint,
    build_descriptor,
    merge_intro_points,
    open_descriptor,
)
from gatepost.mesh.onion.onion_identity import OnionIdentity
from gatepost.testing import ManualClock

# Tor made this descriptor for the service with this key.
SERVICE = OnionIdentity(b"m" * 32)
BY_TOR = Path(__file__).with_name("onion_descriptor.txt").read_text()


def point(number: int) -> OnionIntroPoint:
    keys = [bytes([number, kind]) * 16 for kind in range(4)]
    return OnionIntroPoint(keys[0], keys[1], keys[2], keys[3], b"link" + bytes([number]))


def test_a_descriptor_of_tor_is_read() -> None:
    opened = open_descriptor(BY_TOR, SERVICE)
    assert len(opened.points) == 3
    for each in opened.points:
        assert OnionIntroPoint.unpack(each.pack()) == each
        assert len(each.pack()) <= 512, "it fits into a message of the mesh"


def test_a_merged_descriptor_is_read_back() -> None:
    clock = ManualClock()
    blinded = blind_key(SERVICE, clock.now() // 60_000 // 1440).public_key
    points = [point(number) for number in range(6)]
    text = build_descriptor(SERVICE, blinded, points, clock)
    opened = open_descriptor(text, SERVICE)
    assert opened.points == tuple(points)
    assert (opened.blinded_key, opened.revision) == (blinded, clock.now())
    assert text.startswith("hs-descriptor 3\n")


def test_only_the_service_itself_reads_and_signs_its_descriptor() -> None:
    with pytest.raises(EncryptionError):
        open_descriptor(BY_TOR, OnionIdentity(b"x" * 32))
    for damaged in ("", BY_TOR[:500], BY_TOR.replace("MESSAGE", "MESSAGES")):
        with pytest.raises(EncryptionError):
            open_descriptor(damaged, SERVICE)
    foreign = blind_key(OnionIdentity(b"x" * 32), 1).public_key
    with pytest.raises(EncryptionError, match="period"):
        build_descriptor(SERVICE, foreign, [], ManualClock())


@pytest.mark.parametrize("text", ["", "AAAA", "!" * 260, "A" * 1000])
def test_anything_else_is_no_intro_point(text: str) -> None:
    with pytest.raises(EncryptionError):
        OnionIntroPoint.unpack(text)


def test_every_node_has_a_share_of_the_merged_points() -> None:
    groups = [[point(number * 8 + each) for each in range(6)] for number in range(4)]
    merged = merge_intro_points(groups)
    assert len(merged) == MAX_MERGED_POINTS
    assert all(any(each in merged for each in group[:2]) for group in groups)
    assert merge_intro_points([groups[0], groups[0]]) == groups[0]
    assert replace(point(1), link_specifiers=b"other") not in merged
    assert merge_intro_points([]) == []
