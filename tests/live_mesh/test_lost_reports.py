"""The way back from an executor is cut, and both gateways are killed: its word still counts."""

import asyncio
import time

from msgspec import Raw

from gatepost.client import Client, SyncClient
from gatepost.wire.tasks import TaskReport, TaskView
from tests.live_mesh.cable import Cable
from tests.live_mesh.test_cable import Pair
from tests.live_mesh.tools import Gateway
from tests.waiting import wait_until

# A busy machine has this long to bring the request to bob: then it expires, and the link ends.
_TTL_SECS = 3
_NOT_ENDED = ("pending", "unknown")


def begin_unheard_task(ann: Gateway, bob: Gateway, cable: Cable) -> str:
    """A task that bob's agent begins while nothing that bob says gets through.

    A machine that is busy at the wrong moment brings him the request too late: then once more.
    """
    with SyncClient("al", state_dir=ann.state_dir) as al:
        while True:
            cable.muted = False
            al.send("bo", "are you there?", wait="accepted", timeout=60)
            cable.muted = True
            id = al.create_task("take your time", to="bo", ttl_secs=_TTL_SECS).id
            if receipt := take_mail(bob, id):
                report(bob, TaskReport(id, "bo", "accept", receipt))
                return id


def take_mail(gateway: Gateway, id: str) -> str | None:
    """The receipt of the mail that `bo` takes; None if it does not come in time."""
    ends = time.monotonic() + 2 * _TTL_SECS
    while time.monotonic() < ends:
        taken = gateway.call("POST", "/mailboxes/bo/dequeue", {"wait_secs": 1, "limit": 100})
        for mail in taken["messages"]:
            if mail["msg_id"] == id:
                return str(mail["receipt"])
    return None


def show(gateway: Gateway, id: str) -> TaskView:
    with SyncClient("al", state_dir=gateway.state_dir) as client:
        return client.show_task(id)


def report(gateway: Gateway, report: TaskReport) -> None:
    async def send() -> None:
        async with Client("bo", state_dir=gateway.state_dir) as client:
            await client.report_task(report)

    asyncio.run(send())


def test_a_task_whose_word_is_late_ends_as_it_ended_though_both_gateways_are_killed(
    cabled: Pair,
) -> None:
    ann, bob, cable = cabled
    id = begin_unheard_task(ann, bob, cable)
    bob.restart()
    report(bob, TaskReport(id, "bo", "complete", result=Raw(b'{"worth":"the wait"}')))
    seen = {show(ann, id).state}

    def is_unknown() -> bool:
        seen.add(show(ann, id).state)
        return "unknown" in seen

    wait_until(is_unknown, failure=lambda: str(show(ann, id)))
    assert seen <= set(_NOT_ENDED)
    ann.restart()
    task = show(ann, id)
    assert (task.state, task.executor_node) == ("unknown", "bob")

    cable.muted = False
    cable.port = ann.port
    with cable.broken():
        bob.restart()
    wait_until(lambda: show(ann, id).state not in _NOT_ENDED)
    task = show(ann, id)
    assert (task.state, task.is_presumed, task.amended_at) == ("completed", False, None)
    assert task.result == Raw(b'{"worth":"the wait"}')
