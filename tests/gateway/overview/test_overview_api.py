"""The room at a glance, from three real gateways: its ledger, its needs, its changes, its mail."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from gatepost.wire.overview_views import ChangeNotice
from tests.gateway.tools import client
from tests.live_mesh.conftest import running
from tests.live_mesh.tools import Gateway
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Gateway]]:
    """ann, who founded the room, then bob, and cat at its edge; each has one agent."""
    folder = tmp_path_factory.mktemp("overview")
    with running(folder, "ann", "bob", "cat", mailbox__max_retries=0) as (ann, bob, cat):
        bob.join(ann)
        cat.join(ann, tier="edge")
        for gateway in (ann, bob, cat):
            gateway.call("PUT", f"/agents/{gateway.name[:2]}")
        agents = {"an@ann", "bo@bob", "ca@cat"}
        wait_until(lambda: all(agents <= g.routes() for g in (ann, bob, cat)))
        yield [ann, bob, cat]


def send(sender: Gateway, to: str, **fields: object) -> str:
    own = sender.name[:2]
    body = {"from_agent": own, "to_agent": to, "payload": "hi"} | fields
    return str(sender.call("POST", "/messages", body)["event_id"])


def process(gateway: Gateway, count: int = 1) -> None:
    """Take and ack so much mail of the gateway's agent."""
    box = gateway.name[:2]
    for _ in range(count):
        taken = gateway.call("POST", f"/mailboxes/{box}/dequeue", {"wait_secs": 20})["messages"]
        receipts = [each["receipt"] for each in taken]
        gateway.call("POST", f"/mailboxes/{box}/ack", {"receipts": receipts})


def ledger(gateway: Gateway) -> dict[str, Any]:
    found: dict[str, Any] = gateway.call("GET", "/ledger")
    return found


def test_every_gateway_tells_the_ledger_of_the_whole_room(room: list[Gateway]) -> None:
    ann, bob, cat = room
    send(ann, "bo")
    send(bob, "ca")
    send(cat, "an")
    for gateway in room:
        process(gateway)
    done = {"sent": 3, "processed": 3}
    wait_until(lambda: all(done.items() <= ledger(g)["ledger"].items() for g in room))
    for gateway in room:
        shown = ledger(gateway)
        assert (shown["unknown"], shown["broken"]) == ([], [])
        assert [each["node"] for each in shown["nodes"]] == ["ann", "bob", "cat"]
        assert [each["ledger"]["sent"] for each in shown["nodes"]] == [1, 1, 1]


def test_the_ledger_is_shown_as_it_was(room: list[Gateway]) -> None:
    ann, bob, cat = room
    wait_until(lambda: ledger(ann)["ledger"]["processed"] == 3)
    found: Any = [g.call("GET", "/messages")["messages"] for g in room]
    sent = sorted(each["sent_at"] for messages in found for each in messages)
    assert len(sent) == 3

    def then(at: int) -> dict[str, int]:
        return dict(bob.call("GET", f"/ledger?at={at}")["ledger"])

    assert then(sent[0] - 1)["sent"] == 0
    assert then(sent[-1])["sent"] == 3
    assert then(sent[-1])["processed"] < 3, "the last one was only sent"
    assert then(2**50) == ledger(cat)["ledger"]


def test_messages_are_found_by_id_agent_term_conversation_and_time(room: list[Gateway]) -> None:
    ann, _, _ = room
    id = send(ann, "ca", corr_id="talk-1")

    def found(**wanted: str | int) -> list[str]:
        with client(ann) as http:
            answer = http.get("/v1/messages", params=wanted)
        assert answer.is_success, answer.text
        return [each["event_id"] for each in answer.json()["messages"]]

    assert found(id=id) == [id]
    assert id in found(agent="ca") and id in found(agent="an")
    assert found(conversation="talk-1") == [id]
    assert id in found(until=2**50) and found(since=2**50) == []
    process(room[2])
    wait_until(lambda: id in found(term="processed"))
    assert found(term="expired") == []
    pages = found(limit=1) + found(limit=1, before=found(limit=1)[0])
    assert len(set(pages)) == 2, "the second page begins after the first"


def test_a_dead_letter_is_a_need_until_its_one_action(room: list[Gateway]) -> None:
    ann, bob, _ = room
    id = send(ann, "bo")
    (mail,) = bob.call("POST", "/mailboxes/bo/dequeue", {"wait_secs": 20})["messages"]
    bob.call("POST", "/mailboxes/bo/nack", {"receipts": [mail["receipt"]], "reason": "no paint"})
    (need,) = [n for n in bob.call("GET", "/needs")["needs"] if n["kind"] == "dead_letters"]
    assert (need["text"], need["detail"]) == (
        "1 dead letter of bo",
        "max_retries exhausted: no paint",
    )
    wait_until(lambda: ledger(ann)["ledger"]["dead_letters"] == 1)
    action = need["action"]
    bob.call(action["method"], action["path"].removeprefix("/v1"), action["body"])
    assert not [n for n in bob.call("GET", "/needs")["needs"] if n["kind"] == "dead_letters"]
    assert mail["msg_id"] == id
    process(bob)


def test_a_planted_loss_is_named_with_its_promise_and_evidence(room: list[Gateway]) -> None:
    ann, bob, _ = room
    found = {
        "id": "doubled",
        "class": "audit_violation",
        "subject": "doubled_turn: One event completes at most one turn.",
        "detail": "event 17 of ann was processed twice",
        "raisedAt": int(time.time() * 1000),
    }
    ann.call("POST", "/incidents", [found])
    (broken,) = ledger(ann)["broken"]
    assert broken["term"] == "processed"
    assert broken["promise"].startswith("doubled_turn")
    assert "twice" in broken["evidence"]
    wait_until(lambda: ledger(bob)["broken"] != [])
    (first, *_) = ann.call("GET", "/needs")["needs"]
    assert (first["urgency"], first["action"]["label"]) == (0, "Resolve")
    ann.call("POST", "/incidents/resolve", {"id": broken["incident"]})
    assert ledger(ann)["broken"] == []


class Listener:
    """Hears the changes of a gateway, in a thread."""

    def __init__(self, gateway: Gateway) -> None:
        self.notices: list[ChangeNotice] = []
        self._gateway = gateway
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        with client(self._gateway) as http:
            try:
                with http.stream("GET", "/v1/changes", timeout=60) as answer:
                    for line in answer.iter_lines():
                        if line.startswith("data: "):
                            found = msgspec.json.decode(line[6:], type=ChangeNotice)
                            self.notices.append(found)
            except httpx.HTTPError:
                return

    def topics(self) -> set[str]:
        return {topic for notice in self.notices for topic in notice.topics}


@contextmanager
def listening(gateway: Gateway) -> Iterator[Listener]:
    listener = Listener(gateway)
    wait_until(lambda: bool(listener.notices))
    yield listener


def test_changes_are_told_as_they_happen_and_coalesced(room: list[Gateway]) -> None:
    ann, bob, _ = room
    with listening(ann) as listener:
        assert listener.notices[0].topics == ["ledger", "messages", "nodes", "room", "tasks"]
        listener.notices.clear()
        for _ in range(20):
            send(ann, "bo")
        wait_until(lambda: {"messages", "ledger"} <= listener.topics())
        times = [notice.at for notice in listener.notices]
        pauses = [later - earlier for earlier, later in pairwise(times)]
        assert all(pause >= 200 for pause in pauses), pauses
        process(bob, 20)
        listener.notices.clear()
        ann.call("PUT", "/agents/new-agent")
        wait_until(lambda: "room" in listener.topics())


def test_a_change_between_two_others_is_heard_of(room: list[Gateway]) -> None:
    ann, bob, cat = room
    with listening(ann) as listener:
        listener.notices.clear()
        send(bob, "ca")
        process(cat)
        wait_until(lambda: "ledger" in listener.topics())


def test_a_gateway_that_is_gone_is_named_as_unknown_with_its_last_counts(
    room: list[Gateway], tmp_path: Path
) -> None:
    ann, _, cat = room
    (before,) = [each for each in ledger(ann)["nodes"] if each["node"] == "cat"]
    with listening(ann) as listener:
        listener.notices.clear()
        cat.kill9()
        wait_until(lambda: ledger(ann)["unknown"] == ["cat"])
        wait_until(lambda: {"nodes", "ledger"} <= listener.topics())
    (after,) = [each for each in ledger(ann)["nodes"] if each["node"] == "cat"]
    assert after["ledger"] == before["ledger"], "its messages still count"
    assert after["problem"] and after["at"]
    send(ann, "ca")
    wait_until(lambda: any(n["subject"] == "cat" for n in ann.call("GET", "/needs")["needs"]))
    cat.start()
    wait_until(lambda: ledger(ann)["unknown"] == [])
    process(cat)
