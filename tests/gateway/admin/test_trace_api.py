"""A journey through two real gateways, told by both; and what is told when one is away."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gatepost.gateway.admin.trace_api import clock_offset, sort_steps
from gatepost.wire.report_views import JourneyStep
from tests.core.test_commit_observer import samples
from tests.gateway.tools import client
from tests.live_mesh.tools import Gateway, converge
from tests.waiting import wait_until

Pair = tuple[Gateway, Gateway]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder: Path = tmp_path_factory.mktemp("tracing")
    with Gateway(folder, "ann") as ann, Gateway(folder, "bob") as bob:
        bob.join(ann)
        ann.call("PUT", "/agents/asker")
        bob.call("PUT", "/agents/worker")
        wait_until(lambda: "worker@bob" in ann.routes())
        converge(ann, bob)
        yield ann, bob


def ask(ann: Gateway, **fields: object) -> str:
    body = {"from_agent": "asker", "to_agent": "worker", "payload": "a secret", **fields}

    def sent() -> Any:
        with client(ann) as http:
            answer = http.post("/v1/messages", json=body)
        return answer.json().get("event_id") if answer.is_success else None

    # Routing hears of the room a moment after the room does.
    wait_until(sent)
    return str(sent())


def answer(bob: Gateway) -> None:
    """End the turns of all there is."""
    taken: list[Any] = []

    def take() -> list[Any]:
        taken.extend(bob.call("POST", "/mailboxes/worker/dequeue", {"limit": 100})["messages"])
        return taken

    wait_until(take)
    replies = {each["receipt"]: "done" for each in taken}
    bob.call("POST", "/mailboxes/worker/ack", {"receipts": [*replies], "replies": replies})


def settled(ann: Gateway, event_id: str) -> None:
    wait_until(lambda: ann.call("GET", f"/messages/{event_id}")["state"] == "replied")


def words(journey: Any, event_id: str) -> list[tuple[str, str]]:
    return [(s["node"], s["what"]) for s in journey["steps"] if s["event_id"] == event_id]


def test_the_whole_journey_is_told_by_either_side(pair: Pair) -> None:
    ann, bob = pair
    id = ask(ann, idempotency_key="whole")
    answer(bob)
    settled(ann, id)
    wait_until(lambda: len(ann.call("GET", f"/trace/{id}")["event_ids"]) == 2)
    wait_until(lambda: ("bob", "heard_accepted") in words_of_reply(ann, id))
    for gateway in pair:
        journey = gateway.call("GET", f"/trace/{id}")
        assert words(journey, id) == [
            *(("ann", "sent"), ("bob", "taken"), ("bob", "accepted"), ("ann", "heard_accepted")),
            *(("bob", "turn_ended"), ("bob", "processed"), ("ann", "heard_processed")),
        ]
        assert journey["unreachable"] == {} and journey["clocks"] == {}
        assert "secret" not in str(journey)
        times = [step["at"] for step in journey["steps"]]
        assert times == sorted(times)


def words_of_reply(ann: Gateway, id: str) -> list[tuple[str, str]]:
    journey = ann.call("GET", f"/trace/{id}")
    (reply,) = set(journey["event_ids"]) - {id}
    return words(journey, reply)


def test_a_conversation_is_all_its_events(pair: Pair) -> None:
    ann, bob = pair
    ids = [ask(ann, corr_id="talk-7", idempotency_key=f"talk-{n}") for n in range(3)]
    answer(bob)
    for id in ids:
        settled(ann, id)
    for gateway in pair:
        journey = gateway.call("GET", "/trace/talk-7")
        assert set(ids) < set(journey["event_ids"])
        assert journey["corr_id"] == "talk-7"
        for id in ids:
            assert words(journey, id)[:2] == [("ann", "sent"), ("bob", "taken")]
    one = ann.call("GET", f"/trace/{ids[0]}")
    assert set(one["event_ids"]).isdisjoint(ids[1:])
    assert one["more_in_conversation"] == 2


def test_both_planes_are_on_the_metrics(pair: Pair) -> None:
    ann, bob = pair
    id = ask(ann, idempotency_key="metrics")
    answer(bob)
    settled(ann, id)

    def shown() -> dict[tuple[str, ...], float]:
        with client(ann) as http:
            return samples(http.get("/metrics").text)

    wait_until(lambda: shown()["reader_lag", "bob"] == 0)
    now = shown()
    assert now["links",] == now["link_up", "bob"] == 1
    assert now["room_members",] == 2 and now["room_records",] >= 4 and now["room_bytes",] > 500
    assert 0 <= now["node_silence_seconds", "bob"] < 30
    assert 0 <= now["source_lag_seconds", "bob"] < 30
    assert now["delivery_seconds_count", "message", "accepted"] >= 1
    assert now["events_taken_total", "reply"] >= 1
    assert now["receipts_ignored_total",] == 0
    assert ("link_up", "ann") not in now, "a gateway is no neighbour of its own"


def test_a_gateway_that_is_away_is_named_and_not_waited_for(pair: Pair) -> None:
    ann, bob = pair
    id = ask(ann, idempotency_key="frozen")
    wait_until(lambda: ("bob", "taken") in words(ann.call("GET", f"/trace/{id}"), id))
    with bob.frozen():
        began = time.monotonic()
        journey = ann.call("GET", f"/trace/{id}")
        assert 2 < time.monotonic() - began < 6
        assert journey["unreachable"] == {"bob": "it did not answer within 3 s"}
        assert words(journey, id)[:1] == [("ann", "sent")]
    bob.stop()
    wait_until(lambda: not ann.connected_to("bob"))
    journey = ann.call("GET", f"/trace/{id}")
    assert journey["unreachable"] == {"bob": "there is no link to it, and no relay"}
    (away,) = ann.call("GET", "/status")["peers"]
    assert (away["id"], away["linked"], away["relay"]) == ("bob", False, None)
    assert away["accepted"] >= 1
    assert away["problem"]
    with client(ann) as http:
        gone = samples(http.get("/metrics").text)
    assert (gone["link_up", "bob"], gone["reader_lag", "bob"]) == (0, 0), "what it took is known"
    bob.start()
    wait_until(lambda: ann.call("GET", f"/trace/{id}")["unreachable"] == {}, 20)
    answer(bob)
    settled(ann, id)


def test_a_clock_counts_as_wrong_only_by_more_than_a_round_trip() -> None:
    assert clock_offset(1000, 1010, 1020) == 0
    assert clock_offset(1000, 1021, 1020) == 0
    assert clock_offset(1000, 6010, 1020) == 5000
    assert clock_offset(1000, 10, 1020) == -1000


def test_what_happens_in_one_millisecond_is_told_as_it_leads_to_the_next() -> None:
    said = ["heard_processed", "processed", "sent", "heard_accepted", "accepted", "taken"]
    steps = [JourneyStep(5, "n", what, "e") for what in said]
    reply = [JourneyStep(5, "n", "accepted", "r"), JourneyStep(5, "n", "sent", "r", "reply")]
    assert [(s.event_id, s.what) for s in sort_steps([*reply, *steps, steps[0]])] == [
        *(("e", "sent"), ("e", "taken"), ("e", "accepted"), ("e", "heard_accepted")),
        *(("r", "sent"), ("r", "accepted"), ("e", "processed"), ("e", "heard_processed")),
    ]
