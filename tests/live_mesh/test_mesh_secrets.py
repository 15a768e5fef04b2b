"""The mesh secrets of real gateways: a rotated secret reaches every member, and nobody else."""

from collections.abc import Callable
from typing import Any

from tests.live_mesh.tools import Gateway
from tests.waiting import wait_until


def secrets_of(gateway: Gateway) -> dict[str, Any]:
    return dict(gateway.call("GET", "/mesh/secrets"))


def agree(version: int, *gateways: Gateway) -> bool:
    try:
        found = [secrets_of(gateway) for gateway in gateways]
    except AssertionError:
        return False
    return found[0]["version"] == version and all(each == found[0] for each in found)


def test_a_rotated_secret_reaches_every_member_and_no_revoked_node(
    start: Callable[..., list[Gateway]],
) -> None:
    ann, bob, cat = start("ann", "bob", "cat")
    bob.join(ann)
    cat.join(bob, tier="edge")
    wait_until(lambda: agree(1, ann, bob, cat))
    first = secrets_of(cat)
    cat_key = ann.nodes()["cat"]["fingerprint"]

    bob.call("POST", "/room/nodes/cat/revoke", {})
    wait_until(lambda: agree(2, ann, bob))
    assert secrets_of(ann)["rotated_by"] == "bob"
    rotated = ann.call("POST", "/mesh/secrets/rotate")
    wait_until(lambda: agree(3, ann, bob))
    assert secrets_of(bob) == rotated != first
    shared = [each for each in bob.call("GET", "/room")["records"] if each["map"] == "secrets"]
    assert {each["state"] for each in shared if cat_key in each["key"]} == {"tombstone"}
    assert secrets_of(cat) == first
    shown = str(ann.records())
    assert rotated["join_secret"][40:80] not in shown
