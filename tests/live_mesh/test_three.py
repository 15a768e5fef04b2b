"""Three gateways in processes of their own: they meet, lose each other, and meet again."""

import time
from collections.abc import Callable

import apsw
import httpx
import pytest

from gatepost.client import SyncClient
from gatepost.events import NodeKey
from tests.conftest import choose
from tests.gateway.tools import client
from tests.live_mesh.tools import BareNode, Gateway, converge
from tests.waiting import assert_stays_true, wait_until

ALL = {"ann", "bob", "cat"}
# The full run is for a machine that does nothing else. A busy one takes some times as long.
JOIN_SECS, ONE_SEC = choose(20, 2), choose(10, 1)


def _meet(gateways: list[Gateway]) -> None:
    wait_until(lambda: all(g.connected_to(*ALL - {g.name}) for g in gateways))


def test_create_invite_join_and_converge_in_two_seconds(
    start: Callable[..., list[Gateway]],
) -> None:
    ann, bob, cat = start("ann", "bob", "cat")
    began = time.monotonic()
    bob.join(ann)
    cat.join(ann, tier="edge")
    wait_until(lambda: all(g.nodes().keys() == ALL for g in (ann, bob, cat)))
    converge(ann, bob, cat)
    took = time.monotonic() - began
    assert took < JOIN_SECS, f"it took {took:.2f} s"
    tiers = {name: node["tier"] for name, node in bob.nodes().items()}
    assert tiers == {"ann": "backbone", "bob": "backbone", "cat": "edge"}
    assert cat.nodes()["cat"]["added_by"] == "ann"
    assert [g.call("GET", "/incidents")["incidents"] for g in (ann, bob, cat)] == [[], [], []]


def test_each_may_be_killed_and_comes_back_with_everything(three: list[Gateway]) -> None:
    _meet(three)
    for gateway in three:
        before = set(gateway.records())
        gateway.restart()
        assert before <= set(gateway.records()), "the replica is reopened, not fetched"
        _meet(three)
        converge(*three)
    assert all(gateway.nodes()["bob"]["status"] == "online" for gateway in three)


def test_losing_one_seed_loses_nothing(three: list[Gateway]) -> None:
    ann, bob, cat = three
    _meet(three)
    ann.kill9()
    bob.call("PUT", "/agents/keeper")
    wait_until(lambda: "agents keeper@bob" in cat.records())
    ann.start()
    wait_until(lambda: "agents keeper@bob" in ann.records())
    _meet(three)
    converge(*three)


def test_a_partition_heals(three: list[Gateway]) -> None:
    ann, bob, cat = three
    _meet(three)
    with cat.frozen():
        ann.call("PUT", "/agents/planner")
        bob.call("PUT", "/agents/builder")
        wait_until(lambda: "agents builder@bob" in ann.records())
    cat.call("PUT", "/agents/tester")
    agents = {"agents planner@ann", "agents builder@bob", "agents tester@cat"}
    wait_until(lambda: all(agents <= set(gateway.records()) for gateway in three))
    converge(*three)


def test_an_agent_that_is_removed_leaves_the_room(three: list[Gateway]) -> None:
    ann, bob, _ = three
    bob.call("PUT", "/agents/guest")
    wait_until(lambda: "agents guest@bob" in ann.records())
    bob.call("DELETE", "/agents/guest")
    wait_until(lambda: "data" not in ann.records()["agents guest@bob"])


def test_who_stops_in_good_order_is_seen_to_be_offline(three: list[Gateway]) -> None:
    ann, bob, cat = three
    _meet(three)
    assert cat.stop() == 0
    wait_until(lambda: all(g.nodes()["cat"]["status"] == "offline" for g in (ann, bob)), ONE_SEC)
    cat.start()
    wait_until(lambda: all(g.nodes()["cat"]["status"] == "online" for g in three))


def test_a_revoked_node_is_shut_out_everywhere_within_a_second(
    start: Callable[..., list[Gateway]],
) -> None:
    ann, bob, cat = three = start("ann", "bob", "cat")
    bob.join(ann)
    cat.join(ann)
    _meet(three)
    ann.call("POST", "/room/nodes/cat/revoke", {"reason": "lost"})
    wait_until(lambda: all("cat" not in g.nodes() for g in (ann, bob)), ONE_SEC)
    ann.call("PUT", "/agents/secret")
    wait_until(lambda: "agents secret@ann" in bob.records())
    wait_until(lambda: "revoked" in str(cat.call("GET", "/room/nodes")["problems"]))
    assert _written_since_revocation(ann, cat) == [], "no more than the revocation itself"
    ann.restart()
    # It sticks across a restart.
    assert_stays_true(lambda: "agents secret@ann" not in cat.records(), 0.3)


def _written_since_revocation(revoker: Gateway, revoked: Gateway) -> list[str]:
    """The revoker's later records in the replica of the node that it revoked.

    Its earlier records may arrive late, and other nodes write to the revoked one until they know.
    """
    name = revoker.name
    since = revoker.records()[f"nodes {revoked.name}@{name}"]["at"]
    found = revoked.records().items()
    return [place for place, each in found if each["writer"] == name and each["at"] > since]


def test_who_was_admitted_by_a_revoked_node_stays(start: Callable[..., list[Gateway]]) -> None:
    ann, bob, cat = start("ann", "bob", "cat")
    bob.join(ann)
    cat.join(bob)
    wait_until(lambda: ann.nodes().keys() == ALL)
    ann.call("POST", "/room/nodes/bob/revoke", {})
    wait_until(lambda: cat.connected_to("ann"))
    assert cat.nodes().keys() == ann.nodes().keys() == {"ann", "cat"}


@pytest.mark.parametrize("senior", ["ann", "bob"])
def test_a_node_cannot_shut_out_its_seniors(three: list[Gateway], senior: str) -> None:
    _meet(three)
    with client(three[2]) as http:
        answer = http.post(f"/v1/room/nodes/{senior}/revoke", json={})
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


def test_an_edge_node_invites_nobody(start: Callable[..., list[Gateway]]) -> None:
    ann, bob = start("ann", "bob")
    bob.join(ann, tier="edge")
    with client(bob) as http:
        answer = http.post("/v1/room/invites", json={})
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


def test_a_gateway_with_company_joins_no_other_room(
    three: list[Gateway], start: Callable[..., list[Gateway]]
) -> None:
    (other,) = start("other")
    token = other.invite()
    with client(three[1]) as http:
        answer = http.post("/v1/room/join", json={"seed": other.url, "token": token})
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert other.call("GET", "/room/invites")[0]["state"] == "open"


def test_a_member_that_is_invited_again_changes_its_tier(
    start: Callable[..., list[Gateway]],
) -> None:
    ann, bob = start("ann", "bob")
    bob.join(ann, tier="edge")
    bob.join(ann, tier="backbone")
    wait_until(lambda: ann.nodes()["bob"]["tier"] == "backbone")
    assert bob.invite("cat")
    bob.restart()
    assert bob.nodes()["bob"]["tier"] == "backbone"


def test_a_gateway_alone_in_its_own_room_may_join_another(
    start: Callable[..., list[Gateway]],
) -> None:
    ann, bob = start("ann", "bob")
    bob.invite()
    bob.join(ann)
    converge(ann, bob)
    assert bob.call("GET", "/room")["genesis"] == "ann"


def test_who_crashed_after_its_invite_was_used_gets_in_with_the_same_invite(
    start: Callable[..., list[Gateway]],
) -> None:
    ann, bob = start("ann", "bob")
    token = ann.invite("bob")
    before_the_crash = BareNode(ann, "bob")
    before_the_crash.key = NodeKey((bob.state_dir / "node.key").read_bytes())
    before_the_crash.visit(before_the_crash.ticket(token))
    bob.call("POST", "/room/join", {"seed": ann.url, "token": token})
    converge(ann, bob)
    assert bob.nodes().keys() == {"ann", "bob"}


def test_an_invite_somebody_else_used_is_used(start: Callable[..., list[Gateway]]) -> None:
    ann, bob = start("ann", "bob")
    token = ann.invite()
    BareNode(ann, "mallory").enter(token)
    with client(bob) as http:
        answer = http.post("/v1/room/join", json={"seed": ann.url, "token": token})
    assert (answer.status_code, answer.json()["code"]) == (409, "token_already_used")


def test_the_wrong_host_is_found_out(start: Callable[..., list[Gateway]]) -> None:
    ann, bob, eve = start("ann", "bob", "eve")
    eve.invite()
    token = ann.invite("bob")
    with client(bob) as http:
        answer = http.post("/v1/room/join", json={"seed": eve.url, "token": token})
    assert answer.json()["code"] == "wrong_host"
    with client(bob) as http:
        assert http.get("/v1/room").json()["code"] == "conflict", "it is in no room"


def test_a_seed_is_not_dialled_in_the_clear(start: Callable[..., list[Gateway]]) -> None:
    (bob,) = start("bob")
    token = f"gp1.{'0' * 48}.{'A' * 43}"
    with client(bob) as http:
        answer = http.post("/v1/room/join", json={"seed": "http://192.0.2.1:7433", "token": token})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert "TLS" in answer.json()["message"]


def test_metrics_count_the_connected_peers(three: list[Gateway]) -> None:
    _meet(three)
    headers = {"authorization": f"Bearer {three[0].token}"}
    text = httpx.get(f"{three[0].url}/metrics", headers=headers).text
    assert "gatepost_room_peers 2.0" in text, "each of the others dials"


def test_nobody_was_taken_for_hostile_in_all_of_this(three: list[Gateway]) -> None:
    assert [gateway.incidents() for gateway in three] == [{}, {}, {}]


def test_the_room_moves_to_a_fresh_document_and_everyone_follows(
    start: Callable[..., list[Gateway]],
) -> None:
    ann, bob, cat = start("ann", "bob", "cat")
    bob.join(ann)
    cat.join(ann, "edge")
    _meet([ann, bob])
    cat.stop()
    assert ann.call("POST", "/room/rotate", {})["epoch"] == 2
    wait_until(lambda: bob.call("GET", "/room")["epoch"] == 2)
    cat.start()
    wait_until(lambda: cat.call("GET", "/room")["epoch"] == 2, 20)
    converge(ann, bob, cat)
    assert cat.nodes().keys() == {"ann", "bob", "cat"}
    with client(cat) as http:
        assert http.post("/v1/room/rotate", json={}).json()["code"] == "forbidden"


@pytest.mark.parametrize("away", [False, True])
def test_a_revoked_gateway_refuses_sends_and_its_events_before_still_count(
    start: Callable[..., list[Gateway]], away: bool
) -> None:
    ann, bob = start("ann", "bob")
    bob.join(ann)
    ann.call("PUT", "/agents/al")
    wait_until(lambda: "al@ann" in bob.routes())
    with SyncClient("bo", state_dir=bob.state_dir) as agent:
        agent.send("al", "before", wait="accepted", timeout=10)
    if away:
        bob.stop()
    done = ann.call("POST", "/room/nodes/bob/revoke", {})
    head = _last_seq(bob)
    assert 0 < done["last_seq"] <= head, "an event of bob was read, and none he never wrote"
    assert ann.records()["nodes bob@ann"]["data"]["lastSeq"] == done["last_seq"]
    if away:
        bob.start()

    def code_of_send() -> str:
        with client(bob) as http:
            body = {"from_agent": "bo", "to_agent": "al", "payload": "after"}
            return str(http.post("/v1/messages", json=body).json().get("code"))

    wait_until(lambda: code_of_send() == "revoked", 20)
    bob.restart()
    assert code_of_send() == "revoked", "it is remembered"


def _last_seq(gateway: Gateway) -> int:
    connection = apsw.Connection(
        str(gateway.state_dir / "journal.db"), flags=apsw.SQLITE_OPEN_READONLY
    )
    try:
        ((seq,),) = connection.execute("SELECT max(seq) FROM outbox")
        return int(str(seq))
    finally:
        connection.close()


def test_a_killed_gateway_does_not_read_online(start: Callable[..., list[Gateway]]) -> None:
    ann, bob = start("ann", "bob", delivery__offline_secs=0.5)
    bob.join(ann)
    wait_until(lambda: ann.nodes()["bob"]["status"] == "online")
    bob.kill9()
    wait_until(lambda: ann.nodes()["bob"]["status"] == "offline", 5)
    bob.start()
    wait_until(lambda: ann.nodes()["bob"]["status"] == "online")


def test_the_room_rotates_by_itself_when_most_of_it_is_obsolete(
    start: Callable[..., list[Gateway]],
) -> None:
    times = {"room__keep_invites_secs": 1, "room__keep_tombstones_secs": 1}
    ann, bob = start("ann", "bob", room__sweep_every_secs=1, **times)
    bob.join(ann)
    with client(ann) as http:
        for _ in range(250):
            http.post("/v1/room/invites", json={"ttl_secs": 1})
    wait_until(lambda: all(g.call("GET", "/room")["epoch"] >= 2 for g in (ann, bob)), 20)
    wait_until(lambda: ann.connected_to("bob") and bob.connected_to("ann"))
    assert {"nodes ann", "nodes bob"} <= set(bob.records())
