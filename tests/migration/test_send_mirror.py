"""Ordinary sends and tasks are mirrored while the mirror is on, and nothing comes back as new."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gatepost.client import locator
from gatepost.clock import SystemClock
from gatepost.errors import WrongState
from gatepost.migration import (
    ImportPlan,
    MigrationFolder,
    SendMirror,
    compare_mirror,
    import_dump,
    phase_marker,
    read_dump,
)
from gatepost.migration.phase_marker import MigrationCommand
from gatepost.migration.send_mirror import decode_blob, legacy_record
from gatepost.testing import GatewayProcess
from gatepost.wire.mirror_views import MirroredMessage
from tests.gateway.tools import client as http_client
from tests.migration.tools import client_of, dump_of, message, register

CLOCK = SystemClock()


@pytest.fixture(params=["legacy.json", "legacy.ydoc"])
def out(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / str(request.param)


def mirror_of(gateway: GatewayProcess, folder: MigrationFolder, out: Path) -> SendMirror:
    return SendMirror(locator(gateway.state_dir), folder, out, CLOCK)


async def copy_all(mirror: SendMirror) -> None:
    while await mirror.copy_page(wait_secs=0):
        pass


def test_ordinary_sends_and_tasks_are_mirrored(
    gateway: GatewayProcess, folder: MigrationFolder, out: Path
) -> None:
    async def test() -> None:
        await register(gateway, "bob")
        mirror = mirror_of(gateway, folder, out)
        async with client_of(gateway) as client:
            await client.send("bob", "before", from_="ann")
            await mirror.open("new")
            sent = await client.send("bob", {"n": 1}, from_="ann", corr_id="talk")
            large = await client.send("bob", "x" * 200_000, from_="ann")
            task = await client.send("bob", {"legacyTask": {"title": "build"}}, from_="ann")
            said = {"recipient": "bob", "type": "note", "payload": {"n": 2}}
            with http_client(gateway) as http:
                answer = http.post("/api/hub/messages", json=said).raise_for_status()
            by_hub = answer.json()["message_id"]
            await import_dump(client, folder, dump_of({"7": message(7)}), ImportPlan(), CLOCK)
            await copy_all(mirror)
            await copy_all(mirror)
            found = read_dump(out)
            assert set(found.records["messages"]) == {sent.event_id, large.event_id, by_hub}
            hub_record = found.records["messages"][by_hub]
            assert hub_record["content"] == {"type": "note", "payload": {"n": 2}}
            record = found.records["messages"][sent.event_id]
            assert (record["fromAgentId"], record["toAgentId"]) == ("ann", "bob")
            assert (record["content"], record["corrId"]) == ({"n": 1}, "talk")
            assert found.records["messages"][large.event_id]["content"] == "x" * 200_000
            (found_task,) = found.records["tasks"].items()
            assert (found_task[0], found_task[1]["title"]) == (task.event_id, "build")
            assert found_task[1]["assignedTo"] == "bob"
            report = await import_dump(client, folder, found, ImportPlan(), CLOCK)
            assert report.total.imported == 0, "what was mirrored is not new"
        assert compare_mirror(folder, out, CLOCK).is_equal
        await mirror.close()

    asyncio.run(test())


def test_tasks_of_the_hub_are_mirrored(
    gateway: GatewayProcess, folder: MigrationFolder, out: Path
) -> None:
    """Those of the HTTP API and of clients, with small and large inputs."""

    async def test() -> None:
        await register(gateway, "bob")
        mirror = mirror_of(gateway, folder, out)
        async with client_of(gateway) as client:
            await mirror.open("new")
            body = {"to_agents": ["bob"], "description": "build", "input": {"n": 1}}
            with http_client(gateway) as http:
                answer = http.post("/api/hub/tasks", json=body).raise_for_status()
            posted = answer.json()["tasks"][0]["id"]
            large = await client.create_task("grow", to="bob", input="x" * 200_000, from_="ann")
            await copy_all(mirror)
            found = read_dump(out)
            tasks = found.records["tasks"]
            assert (set(tasks), found.records["messages"]) == ({posted, large.id}, {})
            assert (tasks[posted]["description"], tasks[posted]["input"]) == ("build", {"n": 1})
            assert (tasks[large.id]["createdBy"], tasks[large.id]["assignedTo"]) == ("ann", "bob")
            assert tasks[large.id]["input"] == "x" * 200_000
            report = await import_dump(client, folder, found, ImportPlan(), CLOCK)
            assert report.total.imported == 0, "what was mirrored is not new"
        assert compare_mirror(folder, out, CLOCK).is_equal
        await mirror.close()

    asyncio.run(test())


def test_sends_while_nobody_mirrors_are_mirrored_later(
    gateway: GatewayProcess, folder: MigrationFolder, tmp_path: Path
) -> None:
    async def test() -> None:
        await register(gateway, "bob")
        out = tmp_path / "legacy.json"
        first = mirror_of(gateway, folder, out)
        await first.open("new")
        await first.close()
        async with client_of(gateway) as client:
            sent = await client.send("bob", 1, from_="ann")
        gateway.kill9()
        gateway.start()
        second = mirror_of(gateway, folder, out)
        await second.open("new")
        await copy_all(second)
        assert list(read_dump(out).records["messages"]) == [sent.event_id]
        await second.close()

    asyncio.run(test())


def test_the_cut_over_ends_the_mirror(
    gateway: GatewayProcess, folder: MigrationFolder, tmp_path: Path
) -> None:
    async def test() -> None:
        await register(gateway, "bob")
        mirror = mirror_of(gateway, folder, tmp_path / "legacy.json")
        await mirror.open("new")
        phase_marker.enter_phase(folder, MigrationCommand.CUT_OVER, "new", CLOCK.now())
        with pytest.raises(WrongState, match="cut over"):
            await mirror.copy_page(wait_secs=0)
        async with client_of(gateway) as client:
            await client.send("bob", 1, from_="ann")
        assert gateway.get("/v1/mirror") == {"on": False, "waiting": 0, "messages": []}
        await mirror.close()

    asyncio.run(test())


@pytest.mark.parametrize(
    ("content", "payload"),
    [(b'{"a":1}', {"a": 1}), (b"plain", "plain"), (b"\xff\xfe", {"gatepostBytes": 2})],
)
def test_a_large_payload_becomes_a_value(content: bytes, payload: Any) -> None:
    assert decode_blob(content) == payload


def test_a_task_keeps_its_own_fields() -> None:
    sent = MirroredMessage(1, "e", "ann", "bob", "c", 5)
    kind, record = legacy_record(sent, {"legacyTask": {"status": "open", "title": "t"}})
    assert (kind, record["status"], record["gatepostEventId"]) == ("tasks", "open", "e")
    assert legacy_record(sent, {"legacyTask": 3})[0] == "messages"
