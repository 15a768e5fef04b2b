"""The same calls for code that blocks."""

from collections.abc import Callable

import pytest

from gatepost.client import SyncClient
from gatepost.errors import StaleLeaseHandle, Unavailable
from gatepost.testing import GatewayProcess

Unique = Callable[[str], str]


def test_a_message_goes_in_and_comes_out(gateway: GatewayProcess, unique: Unique) -> None:
    box = unique("box")
    with SyncClient("alice", state_dir=gateway.state_dir) as client:
        assert client.enqueue(box, {"n": 1}).queued
        assert [ack.pending for ack in client.enqueue_many(box, [2, 3])] == [2, 3]
        messages = client.dequeue(box, limit=3)
        assert [message.payload for message in messages] == [{"n": 1}, 2, 3]
        for message in messages:
            client.ack(box, message.receipt)
        assert client.peek(box) == []
        with pytest.raises(StaleLeaseHandle):
            client.ack(box, "nonsense")
        assert client.status().accepting


def test_a_large_payload_is_loaded(gateway: GatewayProcess, unique: Unique) -> None:
    bob = unique("bob")
    with SyncClient("alice", state_dir=gateway.state_dir) as client:
        client.register(bob)
        client.send(bob, "x" * 100_000)
        (message,) = client.dequeue(bob)
        assert client.load(message) == "x" * 100_000
        assert len(client.read(message)) == 100_002


def test_no_gateway_is_an_error_and_leaves_no_thread() -> None:
    client = SyncClient(url="http://127.0.0.1:9", token="t")
    with pytest.raises(Unavailable, match="gatepost up"), client:
        pass
    assert not client._thread.is_alive()


def test_a_task_is_created_shown_and_cancelled(gateway: GatewayProcess, unique: Unique) -> None:
    bob = unique("bob")
    with SyncClient("alice", state_dir=gateway.state_dir) as client:
        client.register(bob)
        task = client.create_task("do it", to=bob)
        assert client.show_task(task.id).state == "pending"
        assert client.cancel_task(task.id).state == "cancelled"
        assert client.await_task(task.id).state == "cancelled"
