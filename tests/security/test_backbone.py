"""Attacks of an admitted backbone node against a real gateway: it is not trusted blindly."""

import httpx
import pytest

from gatepost.room import CoordinationRecord, CoordinatorTerm, RoutingRecord
from gatepost.room.records import MAX_EPOCH
from tests.gateway.tools import client
from tests.security.siege import Siege, spy_of
from tests.waiting import wait_until


def test_a_twin_of_a_known_node_gets_neither_its_name_nor_its_mail(siege: Siege) -> None:
    node = siege.admit("twinner", "backbone")
    keys = siege.member_keys()
    twin = node.admit("bob", "backbone")
    with siege.expect_no_harm(node), node.connect() as connection:
        connection.send_records(twin.sign_node(99), twin.sign_agent("bo", 99, epoch=50))
        connection.wait_until_heard()
    assert siege.member_keys()["bob"] == keys["bob"]


def test_invented_admissions_do_not_keep_it_from_being_revoked(siege: Siege) -> None:
    node = siege.admit("founder", "backbone")
    # A backbone node may admit as many nodes as it likes.
    with siege.expect_no_harm(node, named=False), node.connect() as connection:
        connection.send_records(*(node.admit(f"made-up-{n}").sign_node() for n in range(120)))
        connection.wait_until_heard()
        wait_until(lambda: "nodes made-up-119" in siege.ann.records())
        revocation = {"reason": "it invents nodes", "standing": []}
        siege.ann.call("POST", "/room/nodes/founder/revoke", revocation)
        assert connection.wait_for_close()[0] == 4403
    assert not [each for each in siege.ann.nodes() if each.startswith(("founder", "made-up"))]


@pytest.mark.parametrize("epoch", [2, 2**31 - 1])
def test_only_the_coordinator_starts_an_epoch(siege: Siege, epoch: int) -> None:
    node = siege.admit(f"rotator{epoch}", "backbone")
    before = siege.ann.call("GET", "/room")["epoch"]
    claim = CoordinationRecord(
        coordinator=node.name,
        term=CoordinatorTerm(counter=2**30, node=node.name),
        sweep_every_seconds=60,
        room_epoch=epoch,
    )
    with siege.expect_no_harm(node), node.connect() as connection:
        connection.send_records(node.sign("coordination", f"coordinator@{node.name}", claim))
        connection.wait_until_heard()
    assert siege.ann.call("GET", "/room")["epoch"] == before


def test_a_claim_of_a_living_owners_agent_does_not_count(siege: Siege) -> None:
    """A backbone node may override an owner that is dead, and bob is not."""
    node = siege.admit("usurper", "backbone")
    with siege.expect_no_harm(node), node.connect() as connection:
        connection.send_records(node.sign_agent("bo", epoch=2), node.sign_agent("al", epoch=2**20))
        connection.wait_until_heard()
        assert siege.send("bo", "who has it?").node == "bob"
        assert siege.send(spy_of(node), "and this?").node == "usurper"


def test_a_route_at_the_highest_epoch_does_not_stand_for_ever(siege: Siege) -> None:
    node = siege.admit("router", "backbone")
    route = RoutingRecord(owner_node_id="bob", fallback_node_ids=("router",), epoch=MAX_EPOCH)
    # A backbone node may set any route.
    with siege.expect_no_harm(node, named=False), node.connect() as connection:
        connection.send_records(node.sign("routing", "bo@router", route))
        wait_until(lambda: _route_of_bo(siege) == ("router", ["router"]))
        siege.ann.call("PUT", "/room/routes/bo", {"fallbacks": []})
        assert _route_of_bo(siege) == ("ann", [])
    siege.ann.call("POST", "/room/nodes/router/revoke", {})


def _route_of_bo(siege: Siege) -> tuple[str, list[str]] | None:
    found = siege.ann.call("GET", "/room/routes")
    return next(((r["set_by"], r["fallbacks"]) for r in found if r["target"] == "bo"), None)


def test_it_has_no_token_for_the_local_api(siege: Siege) -> None:
    with client(siege.ann) as http:
        http.headers.pop("authorization")
        answer: httpx.Response = http.get("/v1/room")
    assert answer.status_code == 401
