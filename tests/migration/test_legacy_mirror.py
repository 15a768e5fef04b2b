"""Dual-write: both sides get every message once, whatever is interrupted."""

import asyncio
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gatepost.clock import SystemClock
from gatepost.errors import (
    ConfigError,
    IdempotencyConflict,
    InvalidRequest,
    Unavailable,
    UnknownAgent,
    WrongState,
)
from gatepost.migration import (
    ImportCounts,
    ImportPlan,
    LegacyMirror,
    MigrationFolder,
    compare_mirror,
    import_dump,
    read_dump,
    yjs_document,
)
from gatepost.migration.migration_files import replace_file
from gatepost.migration.phase_marker import MigrationCommand, enter_phase
from gatepost.testing import GatewayProcess
from tests.migration.tools import client_of, drain, message, payloads, register
from tests.waiting import async_wait_until

CLOCK = SystemClock()
HERE = Path(__file__).parent


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "legacy.json"


@pytest.fixture(params=["legacy.json", "legacy.bin"])
def either(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Both forms a legacy document can have."""
    return tmp_path / str(request.param)


def messages(out: Path) -> dict[str, Any]:
    return read_dump(out, "messages").records["messages"]


def test_a_message_reaches_both_sides(
    gateway: GatewayProcess, folder: MigrationFolder, either: Path
) -> None:
    async def test() -> None:
        await register(gateway, "bob")
        async with client_of(gateway) as client, LegacyMirror(client, folder, either) as mirror:
            event_id = await mirror.send("bob", {"n": 1}, from_="ann", corr_id="c-1")
        (taken,) = await drain(gateway, "bob")
        assert (taken.msg_id, taken.payload) == (event_id, {"n": 1})
        (record,) = messages(either).values()
        expected = {"fromAgentId": "ann", "toAgentId": "bob", "content": {"n": 1}, "corrId": "c-1"}
        assert record.items() >= (expected | {"status": "pending"}).items()
        assert record["gatepostEventId"] == event_id
        assert compare_mirror(folder, either, CLOCK).is_equal

    asyncio.run(test())


def test_many_at_once_keep_their_order_and_both_sides_agree(
    gateway: GatewayProcess, folder: MigrationFolder, out: Path
) -> None:
    async def test() -> None:
        await register(gateway, "bob")
        async with client_of(gateway) as client, LegacyMirror(client, folder, out) as mirror:
            await asyncio.gather(*(mirror.send("bob", n, from_="ann") for n in range(600)))
        assert payloads(await drain(gateway, "bob")) == list(range(600))
        both = compare_mirror(folder, out, CLOCK)
        assert both.is_equal
        assert (both.gateway, both.legacy) == (600, 600)

    asyncio.run(test())


def add_an_old_one(out: Path) -> None:
    """As an old writer would, in a document that also holds state."""
    if out.suffix == ".json":
        document = json.loads(out.read_text())
        document["messages"]["old"] = message(7)
        out.write_text(json.dumps(document | {"nodes": {"n": {}}}))
    else:
        doc = yjs_document.load_document(out.read_bytes())
        yjs_document.add_records(doc, "nodes", {"n": {}})
        out.write_bytes(yjs_document.add_records(doc, "messages", {"old": message(7)}))


def test_what_was_there_before_stays_and_what_was_mirrored_is_not_imported_again(
    gateway: GatewayProcess, folder: MigrationFolder, either: Path
) -> None:
    async def test() -> None:
        await register(gateway, "bob")
        async with client_of(gateway) as client:
            async with LegacyMirror(client, folder, either) as mirror:
                await mirror.send("bob", "first", from_="ann")
                add_an_old_one(either)
                await mirror.send("bob", "second", from_="ann")
            report = await import_dump(client, folder, read_dump(either), ImportPlan(), CLOCK)
        assert report.total == ImportCounts(3, 1, 2, 0, 0)
        assert report.others == ["nodes"]
        assert payloads(await drain(gateway, "bob")) == ["first", "second", {"n": 7}]

    asyncio.run(test())


def test_what_the_gateway_refuses_is_not_written_to_the_other_side(
    gateway: GatewayProcess, folder: MigrationFolder, out: Path
) -> None:
    async def test() -> None:
        await register(gateway, "bob")
        async with client_of(gateway) as client, LegacyMirror(client, folder, out) as mirror:
            stray, fine = await asyncio.gather(
                mirror.send("nobody", 1, from_="ann"),
                mirror.send("bob", 2, from_="ann"),
                return_exceptions=True,
            )
            assert isinstance(stray, UnknownAgent)
            assert isinstance(fine, str)
            with pytest.raises(InvalidRequest, match="JSON"):
                await mirror.send("bob", object(), from_="ann")
            with pytest.raises(InvalidRequest, match="recipient"):
                await mirror.send("no agent", 1, from_="ann")
            with pytest.raises(InvalidRequest, match="who sends"):
                await mirror.send("bob", 1)
        assert [one["toAgentId"] for one in messages(out).values()] == ["bob"]

    asyncio.run(test())


def test_a_callers_own_key_makes_a_repeated_send_one_message(
    gateway: GatewayProcess, folder: MigrationFolder, out: Path
) -> None:
    async def test() -> None:
        await register(gateway, "bob")

        async def send(payload: object) -> str:
            async with client_of(gateway) as client, LegacyMirror(client, folder, out) as mirror:
                return await mirror.send("bob", payload, from_="ann", idempotency_key="k")

        assert await send(1) == await send(1)
        with pytest.raises(IdempotencyConflict):
            await send(2)
        assert payloads(await drain(gateway, "bob")) == [1]
        assert len(messages(out)) == 1

    asyncio.run(test())


def interrupted(folder: MigrationFolder, out: Path, at: str, before: dict[str, bytes]) -> None:
    """Make the files look as a run leaves them that died at this step of its group."""
    if at in ("sent", "noted"):
        out.unlink()
    if at == "sent":
        lines = folder.ledger.read_bytes().splitlines(keepends=True)
        folder.ledger.write_bytes(b"".join(line for line in lines if b'"intent"' in line))
    replace_file(folder.mirror_group, before["group"])


@pytest.mark.parametrize("at", ["sent", "noted", "written"])
def test_a_group_that_was_interrupted_is_finished_by_the_next(
    gateway: GatewayProcess, folder: MigrationFolder, out: Path, at: str
) -> None:
    async def test() -> None:
        await register(gateway, "bob")
        async with client_of(gateway) as client:
            async with LegacyMirror(client, folder, out) as mirror:
                await asyncio.gather(*(mirror.send("bob", n, from_="ann") for n in range(20)))
            records = {
                id: {k: v for k, v in one.items() if k != "gatepostEventId"}
                for id, one in messages(out).items()
            }
            group = json.dumps(records).encode()
            interrupted(folder, out, at, {"group": group})
            assert compare_mirror(folder, out, CLOCK).interrupted == 20
            async with LegacyMirror(client, folder, out):
                pass
        both = compare_mirror(folder, out, CLOCK)
        assert both.is_equal
        assert (both.gateway, both.legacy) == (20, 20)
        assert sorted(payloads(await drain(gateway, "bob"))) == list(range(20))

    asyncio.run(test())


def test_a_group_that_never_left_is_sent_by_the_next(
    gateway: GatewayProcess, folder: MigrationFolder, out: Path
) -> None:
    async def test() -> None:
        await register(gateway, "bob")
        replace_file(folder.mirror_group, json.dumps({"m1": message(1)}).encode())
        async with client_of(gateway) as client, LegacyMirror(client, folder, out) as mirror:
            await mirror.send("bob", {"n": 2}, from_="ann")
        assert payloads(await drain(gateway, "bob")) == [{"n": 1}, {"n": 2}]
        assert len(messages(out)) == 2

    asyncio.run(test())


def test_the_gateway_is_killed_under_the_mirror(
    gateway: GatewayProcess, folder: MigrationFolder, either: Path, count: Callable[[int, int], int]
) -> None:
    """What was answered is on both sides, and nothing is on a side twice."""
    rounds = count(2, 10)

    async def test() -> None:
        await register(gateway, "bob")
        sent = 0
        async with client_of(gateway) as client, LegacyMirror(client, folder, either) as mirror:
            for _ in range(rounds):
                numbers = range(sent, sent + 300)
                tasks = [
                    asyncio.create_task(mirror.send("bob", n, from_="ann", timeout=60))
                    for n in numbers
                ]
                await async_wait_until(lambda: any(task.done() for task in tasks))  # noqa: B023
                await asyncio.to_thread(gateway.kill9)
                await asyncio.to_thread(gateway.start)
                await asyncio.gather(*tasks)
                sent += 300
        both = compare_mirror(folder, either, CLOCK)
        assert both.is_equal and both.gateway == sent
        assert payloads(await drain(gateway, "bob")) == list(range(sent))

    asyncio.run(test())


def test_after_cut_over_it_does_not_open_and_an_open_one_leaves_the_legacy_side(
    gateway: GatewayProcess, folder: MigrationFolder, out: Path
) -> None:
    async def test() -> None:
        await register(gateway, "bob")
        async with client_of(gateway) as client:
            async with LegacyMirror(client, folder, out) as mirror:
                await mirror.send("bob", 1, from_="ann")
                enter_phase(folder, MigrationCommand.CUT_OVER, "new", 1)
                await mirror.send("bob", 2, from_="ann")
            with pytest.raises(WrongState, match="cut over"):
                async with LegacyMirror(client, folder, out):
                    pass
        assert payloads(await drain(gateway, "bob")) == [1, 2]
        assert len(messages(out)) == 1

    asyncio.run(test())


def test_it_writes_to_one_file_and_says_what_is_damaged(
    gateway: GatewayProcess, folder: MigrationFolder, out: Path, tmp_path: Path
) -> None:
    async def test() -> None:
        async with client_of(gateway) as client:
            async with LegacyMirror(client, folder, out):
                pass
            with pytest.raises(WrongState, match=out.name):
                async with LegacyMirror(client, folder, tmp_path / "other.json"):
                    pass
            with pytest.raises(WrongState, match=out.name):
                async with LegacyMirror(client, folder, tmp_path / "no" / "folder.json"):
                    pass
            folder.mirror_group.write_text("{")
            with pytest.raises(ConfigError, match="is damaged"):
                async with LegacyMirror(client, folder, out):
                    pass

    asyncio.run(test())


def test_a_closed_mirror_leaves_nobody_waiting(
    gateway: GatewayProcess, folder: MigrationFolder, out: Path
) -> None:
    async def test() -> None:
        await register(gateway, "bob")
        async with client_of(gateway) as client:
            mirror = await LegacyMirror(client, folder, out).__aenter__()
            with gateway.frozen():
                sends = [
                    asyncio.create_task(mirror.send("bob", n, from_="ann")) for n in range(400)
                ]
                # A gateway that is frozen shows nothing; by now some are on their way.
                await asyncio.sleep(0.1)
                await mirror.__aexit__()
                found = await asyncio.gather(*sends, return_exceptions=True)
        assert [type(one) for one in found] == [Unavailable] * 400

    asyncio.run(test())


def test_real_yjs_reads_what_was_mirrored_and_its_marks_survive(
    gateway: GatewayProcess, folder: MigrationFolder, installed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "legacy.bin"
    script = installed / "legacy.mjs"
    script.write_bytes((HERE / "legacy.mjs").read_bytes())

    def node(command: str) -> Any:
        done = subprocess.run(
            ["node", script, command, out], check=True, timeout=60, capture_output=True
        )
        return json.loads(done.stdout)

    async def test() -> None:
        await register(gateway, "bob")
        async with client_of(gateway) as client, LegacyMirror(client, folder, out) as mirror:
            await mirror.send("bob", "first", from_="ann")
            await asyncio.to_thread(node, "mark")
            await mirror.send("bob", {"n": 2}, from_="ann")
        found = {str(one["content"]): one for one in node("read")["messages"].values()}
        assert found["first"]["status"] == "read"
        assert found["{'n': 2}"]["status"] == "pending"

    asyncio.run(test())
