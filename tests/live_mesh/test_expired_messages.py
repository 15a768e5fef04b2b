"""A sender is told that its messages expired: the end that it reads later is what happened."""

import time
from typing import Any

from gatepost.client import SyncClient
from tests.gateway.tools import client
from tests.live_mesh.cable import Cable
from tests.live_mesh.test_cable import Pair
from tests.live_mesh.tools import Gateway
from tests.waiting import wait_until

# A busy machine has this long to bring a message to bob.
_TTL_SECS = 3


def send(ann: Gateway, payload: str, **options: Any) -> str:
    with SyncClient("al", state_dir=ann.state_dir) as al:
        return al.send("bo", payload, **options).event_id


def show(ann: Gateway, id: str) -> Any:
    return ann.call("GET", f"/messages/{id}")


def undelivered(ann: Gateway) -> list[str]:
    return [each["event_id"] for each in ann.call("GET", "/undelivered")["messages"]]


def process_mail(bob: Gateway, id: str, secs: float) -> list[str]:
    """`bo` processes all of its mail until this message comes; returns their ids."""
    seen: list[str] = []
    ends = time.monotonic() + secs
    while id not in seen and time.monotonic() < ends:
        with client(bob) as http:
            body = {"wait_secs": 1, "limit": 100}
            taken = http.post("/v1/mailboxes/bo/dequeue", json=body).json()["messages"]
            receipts = [each["receipt"] for each in taken]
            http.post("/v1/mailboxes/bo/ack", json={"receipts": receipts}).raise_for_status()
        seen += [each["msg_id"] for each in taken]
    return seen


def process_unheard(ann: Gateway, bob: Gateway, cable: Cable) -> str:
    """A message that `bo` processes while nothing that bob says gets through.

    A machine that is busy at the wrong moment brings it too late: then once more.
    """
    while True:
        cable.muted = False
        send(ann, "are you there?", wait="accepted", timeout=60)
        cable.muted = True
        id = send(ann, "done in time", ttl_secs=_TTL_SECS)
        if id in process_mail(bob, id, 2 * _TTL_SECS):
            return id


def test_what_was_processed_is_so_for_its_sender_and_what_was_given_up_is_never_begun(
    cabled: Pair,
) -> None:
    """The way back is cut; then bob stands still, with one more message in his socket."""
    ann, bob, cable = cabled
    done = process_unheard(ann, bob, cable)
    with bob.frozen():
        late = send(ann, "in the socket", ttl_secs=_TTL_SECS)
        wait_until(lambda: set(undelivered(ann)) >= {done, late})
        for id in (done, late):
            told = show(ann, id)
            assert (told["state"], told["reason"]) == ("dead_letter", "expired")
        cable.muted = False
    wait_until(lambda: show(ann, done)["state"] == "processed")
    assert show(ann, done)["verdict"] == "processed: ok"
    wait_until(lambda: "verdict" in show(ann, late))
    assert show(ann, late)["verdict"].startswith("refused: ")
    assert show(ann, late)["state"] == "dead_letter"
    after = send(ann, "and then?")
    turns = process_mail(bob, after, 60)
    assert after in turns and late not in turns
    assert undelivered(ann) == [late]
