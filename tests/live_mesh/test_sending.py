"""Sending to an agent behind another gateway: what waiting tells, and what the room shows."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gatepost.client import SyncClient
from gatepost.errors import DeadlineExceeded
from tests.gateway.tools import client
from tests.live_mesh.conftest import running
from tests.live_mesh.tools import Gateway
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, Gateway]]:
    folder: Path = tmp_path_factory.mktemp("sending")
    settings = {"delivery__offline_secs": 1, "delivery__accept_timeout_secs": 1}
    with running(folder, "ann", "bob", **settings) as (ann, bob):
        bob.join(ann)
        ann.call("PUT", "/agents/al")
        bob.call("PUT", "/agents/bo")
        wait_until(lambda: "bo@bob" in ann.routes())
        _ready(ann)
        yield ann, bob


def _ready(ann: Gateway) -> None:
    """Routing hears of an agent a moment after the room does."""

    def known() -> bool:
        with client(ann) as http:
            body = {"from_agent": "al", "to_agent": "bo", "payload": "ready?"}
            return http.post("/v1/messages", json=body).is_success

    wait_until(known)


def _take_all(bob: Gateway) -> list[Any]:
    with client(bob) as http:
        mail: list[Any] = http.post("/v1/mailboxes/bo/dequeue", json={"limit": 100}).json()[
            "messages"
        ]
        http.post("/v1/mailboxes/bo/ack", json={"receipts": [each["receipt"] for each in mail]})
    return mail


def test_accepted_means_that_the_other_gateway_has_it(pair: tuple[Gateway, Gateway]) -> None:
    ann, bob = pair
    with SyncClient("al", state_dir=ann.state_dir) as al:
        sent = al.send("bo", "hi", wait="accepted")
    assert (sent.state, sent.node) == ("accepted", "bob")
    assert sent.accepted_at is not None
    assert sent.event_id in [each["msg_id"] for each in _take_all(bob)]


def test_without_waiting_it_is_safe_here_and_says_where_it_goes(
    pair: tuple[Gateway, Gateway],
) -> None:
    ann, _ = pair
    with SyncClient("al", state_dir=ann.state_dir) as al:
        sent = al.send("bo", "hi")
    assert (sent.state, sent.node) == ("emitted", "bob")


def test_a_gateway_that_does_not_answer_leaves_the_outcome_unknown(
    pair: tuple[Gateway, Gateway],
) -> None:
    ann, bob = pair
    with bob.frozen(), SyncClient("al", state_dir=ann.state_dir) as al:
        with pytest.raises(DeadlineExceeded, match="no agent has accepted it in time") as caught:
            al.send("bo", "late", wait="accepted", timeout=0.5)
        found = re.search(r"message (\S+) was sent", caught.value.message)
        assert found is not None
        with client(ann) as http:
            body = {"from_agent": "al", "to_agent": "bo", "payload": "late too"}
            answer = http.post(
                "/v1/messages", json=body, params={"wait": "accepted", "timeout": 0.3}
            )
        assert answer.status_code == 202
        assert answer.json()["state"] in ("emitted", "retry_pending")
    id = found[1]
    accepted = ann.call("GET", f"/messages/{id}?wait_secs=20&until=accepted")
    assert accepted["accepted_at"], "and once it is there, that is known"


def test_what_is_given_up_says_so_to_whoever_waits(
    start: Callable[..., list[Gateway]],
) -> None:
    ann, bob = start("ann", "bob", delivery__offline_secs=1)
    bob.join(ann)
    ann.call("PUT", "/agents/al")
    bob.call("PUT", "/agents/bo")
    wait_until(lambda: "bo@bob" in ann.routes())
    _ready(ann)
    bob.kill9()
    with SyncClient("al", state_dir=ann.state_dir) as al:
        sent = al.send("bo", "x", wait="accepted", ttl_secs=0.5, timeout=20)
    assert (sent.state, sent.outcome, sent.reason) == ("dead_letter", "dead_letter", "expired")
    (letter,) = [
        each
        for each in ann.call("GET", "/undelivered")["messages"]
        if each["event_id"] == sent.event_id
    ]
    assert letter["reason"] == "expired"


def test_a_broadcast_reaches_agents_on_both_gateways(pair: tuple[Gateway, Gateway]) -> None:
    ann, bob = pair
    ann.call("PUT", "/agents/here")
    with SyncClient("al", state_dir=ann.state_dir) as al:
        sent = al.broadcast("all", wait="accepted")
    assert {copy.to_agent: copy.node for copy in sent.copies} == {"bo": "bob", "here": "ann"}
    assert "all" in [each["payload"] for each in _take_all(bob)]


def test_the_room_shows_how_far_each_gateway_is(pair: tuple[Gateway, Gateway]) -> None:
    ann, _ = pair
    with SyncClient("al", state_dir=ann.state_dir) as al:
        al.send("bo", "count me", wait="accepted")
    wait_until(lambda: "delivery bob" in ann.records(), 40)
    data = ann.records()["delivery bob"]["data"]
    assert data["inboxCursorAcked"] >= 1
    assert data["inboxCursorSeen"] >= data["inboxCursorAcked"]
    assert data["lastAckAt"] > 0
