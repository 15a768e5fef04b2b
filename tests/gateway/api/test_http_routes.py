"""Every HTTP route: what it does, and how it says no."""

import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from gatepost.testing import GatewayProcess
from tests.gateway.tools import client, mail
from tests.waiting import wait_until

Body = dict[str, Any]


def _ok(answer: httpx.Response) -> Any:
    assert answer.is_success, answer.text
    return answer.json()


def _refused(answer: httpx.Response, status: int, code: str) -> str:
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert answer.json()["message"]
    return str(answer.json()["message"])


def _enqueue(http: httpx.Client, *messages: Body) -> None:
    _ok(http.post("/v1/enqueue/batch", json={"messages": messages}))


def _dequeue(http: httpx.Client, box: str, **body: object) -> list[Any]:
    found: list[Any] = _ok(http.post(f"/v1/mailboxes/{box}/dequeue", json=body))["messages"]
    return found


def _receipts(messages: list[Any]) -> list[str]:
    return [message["receipt"] for message in messages]


def _bury(http: httpx.Client, box: str, *ids: str) -> None:
    _enqueue(http, *(mail(id, box) for id in ids))
    _ok(http.delete(f"/v1/mailboxes/{box}"))


def test_enqueue_answers_with_the_count_and_is_idempotent(http: httpx.Client, box: str) -> None:
    first = _ok(http.post("/v1/enqueue", json=mail("m:1", box)))
    again = _ok(http.post("/v1/enqueue", json=mail("m:1", box)))
    assert first == {"msg_id": "m:1", "queued": True, "pending": 1}
    assert again == {"msg_id": "m:1", "queued": False, "pending": 1}


def test_enqueue_refuses_another_message_under_a_known_id(http: httpx.Client, box: str) -> None:
    _enqueue(http, mail("m:1", box))
    answer = http.post("/v1/enqueue", json=mail("m:1", box, payload="other"))
    _refused(answer, 409, "idempotency_conflict")


def test_enqueue_takes_camel_case(http: httpx.Client, box: str) -> None:
    body = {"msgId": "m:1", "from": "a", "to": box, "payload": "x", "createdAt": 5, "ttlSecs": 60}
    _ok(http.post("/v1/enqueue", json=body))
    assert _dequeue(http, box)[0]["created_at"] == 5


def test_a_batch_tells_each_message_apart(http: httpx.Client, box: str) -> None:
    _enqueue(http, mail("m:1", box))
    batch = [mail("m:1", box, payload="other"), mail("m:2", box)]
    results = _ok(http.post("/v1/enqueue/batch", json={"messages": batch}))["results"]
    assert results[0]["error"]["code"] == "idempotency_conflict"
    assert results[1]["queued"]


def test_a_batch_has_a_size_limit(http: httpx.Client, box: str) -> None:
    many = [mail(f"m:{n}", box) for n in range(1001)]
    _refused(http.post("/v1/enqueue/batch", json={"messages": many}), 400, "invalid_request")
    _refused(http.post("/v1/enqueue/batch", json={"messages": []}), 400, "invalid_request")
    assert _dequeue(http, box) == []


def test_dequeue_leases_in_order_up_to_its_limit(http: httpx.Client, box: str) -> None:
    _enqueue(http, *(mail(f"m:{n}", box) for n in range(3)))
    first = _dequeue(http, box, limit=2)
    assert [m["msg_id"] for m in first] == ["m:0", "m:1"]
    assert first[0]["payload"] == "payload of m:0"
    assert _dequeue(http, box) == [], "the pair waits for its head"


def test_dequeue_hands_a_named_consumer_the_same_lease_again(http: httpx.Client, box: str) -> None:
    _enqueue(http, mail("m:1", box))
    first = _dequeue(http, box, consumer="worker")
    assert _dequeue(http, box, consumer="worker") == first
    assert _dequeue(http, box, consumer="other") == []


@pytest.mark.parametrize("body", [{"limit": 0}, {"limit": 1001}, {"wait_secs": -1}, {"limit": "1"}])
def test_dequeue_refuses_impossible_wishes(http: httpx.Client, box: str, body: Body) -> None:
    answer = http.post(f"/v1/mailboxes/{box}/dequeue", json=body)
    _refused(answer, 400, "invalid_request")


def test_a_long_poll_wakes_as_soon_as_mail_comes(
    gateway: GatewayProcess, http: httpx.Client, box: str
) -> None:
    def deliver() -> None:
        # The mail comes while the poll waits.
        time.sleep(0.3)
        with client(gateway) as other:
            _enqueue(other, mail("m:1", box))

    start = time.monotonic()
    threading.Thread(target=deliver).start()
    (message,) = _dequeue(http, box, wait_secs=20)
    assert message["msg_id"] == "m:1"
    assert 0.25 < time.monotonic() - start < 10


def test_a_long_poll_ends_empty_when_its_time_is_over(http: httpx.Client, box: str) -> None:
    start = time.monotonic()
    assert _dequeue(http, box, wait_secs=0.2) == []
    assert 0.15 < time.monotonic() - start < 10


def test_who_hangs_up_in_a_long_poll_is_given_no_mail(
    gateway: GatewayProcess, http: httpx.Client, box: str
) -> None:
    for _ in range(3):
        with client(gateway) as impatient, pytest.raises(httpx.ReadTimeout):
            impatient.post(f"/v1/mailboxes/{box}/dequeue", json={"wait_secs": 20}, timeout=0.1)
    # Nothing shows that the gateway has noticed who hung up.
    time.sleep(0.1)
    _enqueue(http, mail("m:1", box))
    (message,) = _dequeue(http, box)
    assert (message["msg_id"], message["attempt"]) == ("m:1", 0)
    assert "Traceback" not in gateway.log.read_text()


def test_ack_ends_turns_and_repeats_harmlessly(http: httpx.Client, box: str) -> None:
    _enqueue(http, mail("m:1", box), mail("m:2", box))
    receipts = _receipts(_dequeue(http, box, limit=2))
    first = _ok(http.post(f"/v1/mailboxes/{box}/ack", json={"receipts": receipts}))
    again = _ok(http.post(f"/v1/mailboxes/{box}/ack", json={"receipts": receipts}))
    assert first == {"op": "settled", "settled": 2}
    assert "failures" not in again
    assert _ok(http.get(f"/v1/mailboxes/{box}"))["messages"] == []


def test_ack_by_msg_id(http: httpx.Client, box: str) -> None:
    _enqueue(http, mail("m:1", box))
    _dequeue(http, box)
    assert _ok(http.post(f"/v1/mailboxes/{box}/ack", json={"msg_ids": ["m:1"]}))["settled"] == 1


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({}, 400, "invalid_request"),
        ({"msg_ids": ["m:9"]}, 404, "unknown_message"),
        ({"msg_ids": ["m:1"]}, 409, "wrong_state"),
        ({"receipts": ["nonsense"]}, 409, "stale_receipt"),
        ({"receipts": ["1.1"]}, 404, "unknown_message"),
    ],
)
@pytest.mark.parametrize("verb", ["ack", "nack"])
def test_settling_refuses_what_is_not_leased(
    http: httpx.Client, box: str, verb: str, body: Body, status: int, code: str
) -> None:
    _enqueue(http, mail("m:1", box))
    _refused(http.post(f"/v1/mailboxes/{box}/{verb}", json=body), status, code)


def test_acks_must_come_in_order(http: httpx.Client, box: str) -> None:
    _enqueue(http, mail("m:1", box), mail("m:2", box))
    second = _receipts(_dequeue(http, box, limit=2))[1:]
    answer = http.post(f"/v1/mailboxes/{box}/ack", json={"receipts": second})
    _refused(answer, 409, "out_of_order")


def test_nack_sends_a_message_back_to_wait(http: httpx.Client, box: str) -> None:
    _enqueue(http, mail("m:1", box))
    receipts = _receipts(_dequeue(http, box))
    _ok(http.post(f"/v1/mailboxes/{box}/nack", json={"receipts": receipts, "reason": "no"}))
    (summary,) = _ok(http.get(f"/v1/mailboxes/{box}"))["messages"]
    assert (summary["state"], summary["attempt"]) == ("nacked", 1)
    assert summary["not_before"] > time.time()


def test_extend_keeps_a_lease_and_names_those_that_are_gone(http: httpx.Client, box: str) -> None:
    _enqueue(http, mail("m:1", box))
    (receipt,) = _receipts(_dequeue(http, box))
    path = f"/v1/mailboxes/{box}/extend"
    assert _ok(http.post(path, json={"receipts": [receipt]}))["settled"] == 1
    both = _ok(http.post(path, json={"receipts": [receipt, "1.1"]}))
    assert [f["subject"] for f in both["failures"]] == ["1.1"]
    _refused(http.post(path, json={"receipts": ["1.1"]}), 409, "stale_receipt")


def test_peek_pages_through_unsettled_mail(http: httpx.Client, box: str) -> None:
    _enqueue(http, *(mail(f"m:{n}", box) for n in range(5)))
    first = _ok(http.get(f"/v1/mailboxes/{box}", params={"limit": 3}))["messages"]
    rest = _ok(http.get(f"/v1/mailboxes/{box}", params={"after": "m:2"}))["messages"]
    assert [m["msg_id"] for m in first + rest] == [f"m:{n}" for n in range(5)]
    _refused(http.get(f"/v1/mailboxes/{box}", params={"after": "m:9"}), 404, "unknown_message")
    _refused(http.get(f"/v1/mailboxes/{box}", params={"limit": 0}), 400, "invalid_request")
    _refused(http.get(f"/v1/mailboxes/{box}", params={"limit": "x"}), 400, "invalid_request")


def test_mailboxes_lists_counts(http: httpx.Client, box: str) -> None:
    _enqueue(http, mail("m:1", box), mail("m:2", box, "other"))
    _dequeue(http, box)
    counts = {entry.pop("name"): entry for entry in _ok(http.get("/v1/mailboxes"))}
    expected = {"waiting": 1, "in_flight": 1, "dead_letters": 0, "order": "fifo"}
    assert counts[box] == expected


def test_purge_turns_mail_into_dead_letters(http: httpx.Client, box: str) -> None:
    _enqueue(http, mail("m:1", box), mail("m:2", box))
    assert _ok(http.delete(f"/v1/mailboxes/{box}"))["count"] == 2
    letters = _ok(http.get(f"/v1/mailboxes/{box}/dead-letters"))["messages"]
    assert [letter["msg_id"] for letter in letters] == ["m:1", "m:2"]
    assert letters[0]["payload"] == "payload of m:1"


def test_dead_letters_can_be_filtered_and_paged(http: httpx.Client, box: str) -> None:
    _bury(http, box, "m:1", "m:2", "m:3")
    path = f"/v1/mailboxes/{box}/dead-letters"

    def ids(**params: str | int) -> list[str]:
        return [m["msg_id"] for m in _ok(http.get(path, params=params))["messages"]]

    assert ids(limit=2) == ["m:1", "m:2"]
    assert ids(after="m:2") == ["m:3"]
    assert ids(sender="nobody") == []
    assert ids(reason_contains="purged") == ["m:1", "m:2", "m:3"]
    assert ids(replayed="true") == []
    _refused(http.get(path, params={"after": "m:9"}), 404, "unknown_message")


def test_one_dead_letter_can_be_shown(http: httpx.Client, box: str) -> None:
    _bury(http, box, "m:1")
    assert _ok(http.get(f"/v1/mailboxes/{box}/dead-letters/m:1"))["reason"] == "purged by operator"
    _refused(http.get(f"/v1/mailboxes/{box}/dead-letters/m:2"), 404, "unknown_message")


def test_replay_sends_dead_letters_again(http: httpx.Client, box: str) -> None:
    _bury(http, box, "m:1", "m:2", "m:3")
    path = f"/v1/mailboxes/{box}/dead-letters/replay"
    one = _ok(http.post(path, json={"msg_ids": ["m:2"]}))["results"]
    rest = _ok(http.post(path, json={"rate_per_sec": 1000}))["results"]
    assert [len(one), len(rest)] == [1, 2], "what was replayed is not replayed again"
    taken = _dequeue(http, box, limit=5)
    assert [m["payload"] for m in taken] == [f"payload of m:{n}" for n in (2, 1, 3)]
    assert [m["msg_id"] for m in taken] == [ack["msg_id"] for ack in one + rest]


def test_replay_keeps_to_its_rate(http: httpx.Client, box: str) -> None:
    _bury(http, box, "m:1", "m:2", "m:3")
    start = time.monotonic()
    path = f"/v1/mailboxes/{box}/dead-letters/replay"
    _ok(http.post(path, json={"rate_per_sec": 10}))
    assert 0.2 < time.monotonic() - start < 10


@pytest.mark.parametrize(
    "body",
    [
        {"limit": 0},
        {"limit": -5},
        {"limit": 2**70},
        {"rate_per_sec": 0},
        {"rate_per_sec": -1},
        {"failed_after": 2**70},
        {"failed_before": -1},
        {"msg_ids": ["../x"]},
        {"msg_ids": ["m"] * 1001},
        {"colour": "red"},
    ],
)
def test_replay_refuses_impossible_wishes(http: httpx.Client, box: str, body: Body) -> None:
    _bury(http, box, "m:1")
    answer = http.post(f"/v1/mailboxes/{box}/dead-letters/replay", json=body)
    _refused(answer, 400, "invalid_request")


def test_discard_gives_dead_letters_up_and_is_audited(http: httpx.Client, box: str) -> None:
    _bury(http, box, "m:1", "m:2")
    path = f"/v1/mailboxes/{box}/dead-letters"
    assert _ok(http.post(f"{path}/discard", json={"msg_ids": ["m:1"]}))["count"] == 1
    assert _ok(http.delete(path))["count"] == 1
    assert _ok(http.get(path))["messages"] == []
    audit = _ok(http.get("/v1/audit", params={"limit": 3}))
    assert [entry["action"] for entry in audit] == [
        "dead_letter.discard",
        "dead_letter.discard",
        "mailbox.purge",
    ]
    _refused(http.post(f"{path}/discard", json={"failed_after": 2**70}), 400, "invalid_request")


def test_send_is_receipted_and_traced(http: httpx.Client, box: str) -> None:
    _ok(http.put(f"/v1/agents/{box}"))
    new = {"from_agent": "al", "to_agent": box, "payload": {"n": 1}}
    sent = _ok(http.post("/v1/messages", json=new))
    assert sent["state"] == "accepted"
    (message,) = _dequeue(http, box)
    assert message["event"]["event_id"] == message["msg_id"] == sent["event_id"]
    receipt = message["receipt"]
    body = {"receipts": [receipt], "replies": {receipt: {"done": True}}}
    _ok(http.post(f"/v1/mailboxes/{box}/ack", json=body))
    status = _ok(http.get(f"/v1/messages/{sent['event_id']}"))
    assert (status["state"], status["outcome"], status["reply"]) == (
        "replied",
        "ok",
        {"done": True},
    )
    trace = _ok(http.get(f"/v1/messages/{sent['event_id']}/trace"))
    assert [event["kind"] for event in trace] == ["message", "ack", "reply", "ack"]


def test_a_status_can_be_waited_for(gateway: GatewayProcess, http: httpx.Client, box: str) -> None:
    _ok(http.put(f"/v1/agents/{box}"))
    new = {"from_agent": "al", "to_agent": box, "payload": 1}
    id = _ok(http.post("/v1/messages", json=new))["event_id"]

    def work() -> None:
        # The turn ends while its sender waits.
        time.sleep(0.1)
        with client(gateway) as agent:
            receipts = _receipts(_dequeue(agent, box))
            _ok(agent.post(f"/v1/mailboxes/{box}/ack", json={"receipts": receipts}))

    early = _ok(http.get(f"/v1/messages/{id}", params={"wait_secs": 0.05}))
    assert early["state"] == "accepted"
    threading.Thread(target=work).start()
    start = time.monotonic()
    assert _ok(http.get(f"/v1/messages/{id}", params={"wait_secs": 20}))["state"] == "processed"
    assert time.monotonic() - start < 5


def test_send_refuses_what_it_cannot_deliver(http: httpx.Client, box: str) -> None:
    new = {"from_agent": "al", "to_agent": box, "payload": 1}
    assert box in _refused(http.post("/v1/messages", json=new), 404, "unknown_agent")
    _ok(http.put(f"/v1/agents/{box}"))
    neither = {"from_agent": "al", "to_agent": box}
    _refused(http.post("/v1/messages", json=neither), 400, "invalid_request")
    lost = neither | {"payload_ref": "sha256:" + "0" * 64}
    _refused(http.post("/v1/messages", json=lost), 404, "unknown_blob")
    _refused(http.post("/v1/messages", json=neither | {"payload_ref": "x"}), 400, "invalid_id")
    _refused(http.post("/v1/messages", json=new | {"event_id": "x"}), 400, "invalid_id")


def test_a_send_batch_tells_each_message_apart(http: httpx.Client, box: str) -> None:
    _ok(http.put(f"/v1/agents/{box}"))
    news = [{"from_agent": "al", "to_agent": to, "payload": 1} for to in (box, "nobody", box)]
    results = _ok(http.post("/v1/messages/batch", json={"messages": news}))["results"]
    assert [result.get("error", {}).get("code") for result in results] == [
        None,
        "unknown_agent",
        None,
    ]
    assert len(_dequeue(http, box, limit=5)) == 2


@pytest.mark.parametrize("tail", ["", "/trace"])
def test_unknown_messages_are_not_found(http: httpx.Client, tail: str) -> None:
    unknown = "01890000-0000-7000-8000-000000000000"
    _refused(http.get(f"/v1/messages/{unknown}{tail}"), 404, "unknown_message")
    _refused(http.get(f"/v1/messages/nonsense{tail}"), 400, "invalid_id")


@pytest.mark.parametrize("wait", ["nan", "inf", "-1", "4000", "x"])
def test_a_wait_must_be_a_sane_number(http: httpx.Client, wait: str) -> None:
    unknown = "01890000-0000-7000-8000-000000000000"
    answer = http.get(f"/v1/messages/{unknown}", params={"wait_secs": wait})
    _refused(answer, 400, "invalid_request")


def test_registering_takes_query_parameters_and_no_body(http: httpx.Client, box: str) -> None:
    refused = http.put(f"/v1/agents/{box}", json={"order": "none"})
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_request")
    assert "as query parameters" in refused.json()["message"]
    assert _ok(http.put(f"/v1/agents/{box}?order=none", json={}))["id"] == box


def test_agents_are_registered_listed_and_removed(http: httpx.Client, box: str) -> None:
    assert _ok(http.put(f"/v1/agents/{box}"))["id"] == box
    assert box in [agent["id"] for agent in _ok(http.get("/v1/agents"))]
    _ok(http.delete(f"/v1/agents/{box}"))
    assert box not in [agent["id"] for agent in _ok(http.get("/v1/agents"))]
    _refused(http.delete(f"/v1/agents/{box}"), 404, "unknown_agent")


def test_a_removed_agents_mail_is_kept_as_dead_letters(http: httpx.Client, box: str) -> None:
    _ok(http.put(f"/v1/agents/{box}"))
    new = {"from_agent": "al", "to_agent": box, "payload": "keep me"}
    id = _ok(http.post("/v1/messages", json=new))["event_id"]
    assert _ok(http.delete(f"/v1/agents/{box}"))["count"] == 1
    (letter,) = _ok(http.get(f"/v1/mailboxes/{box}/dead-letters"))["messages"]
    assert (letter["payload"], letter["reason"]) == ("keep me", "purged by agent removal")
    status = _ok(http.get(f"/v1/messages/{id}"))
    assert (status["state"], status["outcome"]) == ("processed", "dead_letter")


def test_reading_an_unknown_mailbox_finds_it_empty_and_leaves_no_trace(
    http: httpx.Client, box: str
) -> None:
    path = f"/v1/mailboxes/{box}"
    assert _ok(http.get(path))["messages"] == []
    assert _ok(http.get(f"{path}/dead-letters"))["messages"] == []
    assert _dequeue(http, box) == []
    assert _dequeue(http, box, consumer="worker") == []
    for verb in ("ack", "nack"):
        _refused(http.post(f"{path}/{verb}", json={"msg_ids": ["m"]}), 404, "unknown_message")
        _refused(http.post(f"{path}/{verb}", json={"receipts": ["1.1"]}), 404, "unknown_message")
    assert _ok(http.post(f"{path}/dead-letters/replay", json={}))["results"] == []
    assert _ok(http.delete(f"{path}/dead-letters"))["count"] == 0
    assert _ok(http.delete(path))["count"] == 0
    assert box not in [entry["name"] for entry in _ok(http.get("/v1/mailboxes"))]


def test_unknown_paths_and_methods_have_codes_too(http: httpx.Client) -> None:
    _refused(http.get("/v1/nothing"), 404, "not_found")
    _refused(http.patch("/v1/agents"), 405, "method_not_allowed")


def test_a_full_mailbox_says_when_to_come_again(
    start: Callable[..., GatewayProcess], box: str
) -> None:
    with client(start(mailbox__max_pending=2)) as http:
        _enqueue(http, mail("m:1", box), mail("m:2", box))
        answer = http.post("/v1/enqueue", json=mail("m:3", box))
        _refused(answer, 429, "mailbox_full")
        assert int(answer.headers["retry-after"]) >= 1
        _ok(http.put(f"/v1/agents/{box}"))
        new = {"from_agent": "al", "to_agent": box, "payload": 1}
        _refused(http.post("/v1/messages", json=new), 429, "mailbox_full")
        assert len(_dequeue(http, box, limit=5)) == 2


def test_a_dequeue_that_was_broken_off_gives_its_mail_back(
    gateway: GatewayProcess, http: httpx.Client, box: str
) -> None:
    """The client is gone before the frozen gateway reads its request.

    On a busy machine the gateway may answer before it notices that; then the lease has to end.
    """

    def break_off(box: str) -> bool:
        _enqueue(http, mail("m:1", box))
        with gateway.frozen(), client(gateway) as impatient, pytest.raises(httpx.ReadTimeout):
            impatient.post(f"/v1/mailboxes/{box}/dequeue", json={}, timeout=0.1)

        def free() -> bool:
            (summary,) = _ok(http.get(f"/v1/mailboxes/{box}"))["messages"]
            return bool(summary["state"] == "pending" and summary["attempt"] == 0)

        try:
            return bool(wait_until(free, 3))
        except AssertionError:
            return False

    assert any(break_off(f"{box}-{number}") for number in range(4))


# -- several receivers, and waiting


def _send(http: httpx.Client, params: Body | None = None, **body: object) -> httpx.Response:
    given = {"from_agent": "al", "payload": "hi"} | body
    return http.post("/v1/messages", json=given, params=params or {})


def test_a_message_for_several_has_a_copy_for_each(http: httpx.Client, box: str) -> None:
    boxes = [f"{box}-a", f"{box}-b"]
    for name in boxes:
        _ok(http.put(f"/v1/agents/{name}"))
    sent = _ok(_send(http, to_agents=[*boxes, f"{box}-nobody"]))
    assert [copy["to_agent"] for copy in sent["copies"]] == [*boxes, f"{box}-nobody"]
    assert sent["copies"][2]["error"]["code"] == "unknown_agent"
    for name, copy in zip(boxes, sent["copies"], strict=False):
        (message,) = _dequeue(http, name)
        assert message["msg_id"] == copy["event_id"]
        assert message["event"]["corr_id"] == sent["corr_id"]


def test_a_message_for_nobody_known_is_refused(http: httpx.Client, box: str) -> None:
    why = _refused(_send(http, to_agents=[f"{box}-x", f"{box}-y"]), 400, "invalid_targets")
    assert f"{box}-x" in why
    _refused(_send(http), 400, "invalid_request")
    _refused(_send(http, to_agent=box, to_agents=[box]), 400, "invalid_request")
    _refused(_send(http, to_agents=[]), 400, "invalid_request")


def test_sending_may_wait_and_says_when_it_waited_in_vain(http: httpx.Client, box: str) -> None:
    _ok(http.put(f"/v1/agents/{box}"))
    accepted = _send(http, {"wait": "accepted"}, to_agent=box)
    assert (accepted.status_code, accepted.json()["state"]) == (200, "accepted")
    late = _send(http, {"wait": "processed", "timeout": 0.1}, to_agents=[box])
    assert late.status_code == 202, "it was sent, and is not that far yet"
    (copy,) = late.json()["copies"]
    assert (copy["to_agent"], copy["state"]) == (box, "accepted")
    messages = _dequeue(http, box, limit=2)
    _ok(http.post(f"/v1/mailboxes/{box}/ack", json={"receipts": _receipts(messages)}))
    path = f"/v1/messages/{copy['event_id']}"
    assert _ok(http.get(path, params={"wait_secs": 5, "until": "processed"}))["outcome"] == "ok"


def test_bodies_take_either_spelling_and_name_what_they_do_not_know(
    http: httpx.Client, box: str
) -> None:
    _enqueue(http, mail("m:1", box))
    assert _dequeue(http, box, waitSecs=0, consumer="c")
    _ok(http.post(f"/v1/mailboxes/{box}/ack", json={"msgIds": ["m:1"]}))
    answer = http.post(f"/v1/mailboxes/{box}/dequeue", json={"wait": 1})
    assert "`wait`" in _refused(answer, 400, "invalid_request")


def test_queries_take_either_spelling_and_name_what_they_do_not_know(
    http: httpx.Client, box: str
) -> None:
    _bury(http, box, "m:1")
    path = f"/v1/mailboxes/{box}/dead-letters"
    for name in ("reason_contains", "reasonContains"):
        assert len(_ok(http.get(path, params={name: "purged"}))["messages"]) == 1
        assert _ok(http.get(path, params={name: "other reason"}))["messages"] == []
    assert "`limmit`" in _refused(http.get(path, params={"limmit": "3"}), 400, "invalid_request")
    twice = {"reason_contains": "a", "reasonContains": "b"}
    _refused(http.get(path, params=twice), 400, "invalid_request")
    assert _ok(http.get("/v1/incidents", params={"class": "dead_letter"})) is not None


def test_order_delay_and_retries_of_a_message(http: httpx.Client, box: str) -> None:
    now = time.time()
    _enqueue(
        http,
        mail("m:1", box, order="none", max_retries=0),
        mail("m:2", box, order="none", notBefore=now + 3600),
        mail("m:3", box, order="none"),
    )
    (first,), (second,) = _dequeue(http, box), _dequeue(http, box)
    assert [(m["msg_id"], m["order"]) for m in (first, second)] == [
        ("m:1", "none"),
        ("m:3", "none"),
    ]
    nack = f"/v1/mailboxes/{box}/nack"
    _ok(http.post(nack, json={"receipts": [first["receipt"]], "reason": "no"}))
    _ok(http.post(nack, json={"receipts": [second["receipt"]], "retry": False, "reason": "never"}))
    letters = _ok(http.get(f"/v1/mailboxes/{box}/dead-letters"))["messages"]
    assert sorted(letter["reason"] for letter in letters) == [
        "max_retries exhausted: no",
        "rejected: never",
    ]
    (left,) = _ok(http.get(f"/v1/mailboxes/{box}"))["messages"]
    assert (left["msg_id"], left["not_before"]) == ("m:2", int(now + 3600))
    early = mail("m:4", box, not_before=now + 60, ttl_secs=30)
    _refused(http.post("/v1/enqueue", json=early), 400, "expires_too_soon")


def test_a_work_queue_is_a_mailbox_without_order(http: httpx.Client, box: str) -> None:
    _ok(http.put(f"/v1/agents/{box}", params={"order": "none"}))
    for n in range(3):
        _ok(http.post("/v1/messages", json={"from_agent": "a", "to_agent": box, "payload": n}))
    assert [len(_dequeue(http, box)) for _ in range(4)] == [1, 1, 1, 0]
    (found,) = [each for each in _ok(http.get("/v1/mailboxes")) if each["name"] == box]
    assert found["order"] == "none"


def test_operations_of_all_kinds_are_done_at_one_address(http: httpx.Client, box: str) -> None:
    new = {"op": "enqueue", "messages": [mail("m:1", box)]}
    assert _ok(http.post("/v1/operations", json=new))["results"][0]["queued"]
    taken = _ok(http.post("/v1/operations", json={"op": "dequeue", "mailbox": box}))
    assert taken["op"] == "messages"
    ack = {"op": "ack", "mailbox": box, "receipts": _receipts(taken["messages"])}
    assert _ok(http.post("/v1/operations", json=ack)) == {"op": "settled", "settled": 1}


def test_operations_that_push_or_do_not_exist_are_refused(http: httpx.Client, box: str) -> None:
    pushed = http.post("/v1/operations", json={"op": "subscribe", "mailbox": box})
    assert "wait_secs" in _refused(pushed, 400, "invalid_request")
    _refused(http.post("/v1/operations", json={"op": "status"}), 400, "invalid_request")
    _refused(
        http.post("/v1/operations", json={"op": "ack", "mailbox": "../x"}), 400, "invalid_request"
    )


def test_an_operation_costs_what_it_costs_over_the_websocket(
    start: Callable[..., GatewayProcess],
) -> None:
    with client(start(limits__rate_per_sec=1, limits__burst=10)) as http:
        batch = {"op": "enqueue", "messages": [mail(f"m:{n}", "box") for n in range(50)]}
        _refused(http.post("/v1/operations", json=batch), 429, "rate_limited")


# -- pages of other origins


def _preflight(http: httpx.Client, origin: str) -> str | None:
    asked = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    headers = http.options("/v1/operations", headers=asked).headers
    allowed: str | None = headers.get("access-control-allow-origin")
    return allowed


def test_no_page_of_another_origin_may_call_unless_it_is_allowed(
    http: httpx.Client, start: Callable[..., GatewayProcess]
) -> None:
    page = "https://app.example"
    assert _preflight(http, page) is None
    with client(start(room__allowed_origins=page)) as open_to_page:
        assert _preflight(open_to_page, page) == page
        assert _preflight(open_to_page, "https://evil.example") is None
        for headers in ({"authorization": ""}, {"authorization": "Bearer wrong"}):
            answer = open_to_page.get("/v1/status", headers=headers | {"origin": page})
            _refused(answer, 401, "unauthorized")
