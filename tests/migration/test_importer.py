"""Importing into a real gateway: once, in order, with numbers that add up."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gatepost.clock import SystemClock
from gatepost.errors import MailboxFull, Unavailable, WrongState
from gatepost.migration import (
    AgentNames,
    ImportPlan,
    ImportSummary,
    LegacyDump,
    LegacyItem,
    MigrationFolder,
    import_dump,
    parse_dump,
    rehearse_import,
    survey_dump,
)
from gatepost.migration.import_summary import ImportCounts
from gatepost.migration.importer import split_batches
from gatepost.migration.migration_files import replace_file
from gatepost.migration.phase_marker import (
    MigrationCommand,
    MigrationPhase,
    enter_phase,
    load_marker,
)
from gatepost.testing import GatewayProcess
from tests.migration.tools import (
    client_of,
    drain,
    dump_of,
    item_of,
    ledger_states,
    lookup_of,
    message,
    payloads,
    register,
    rows,
)

CLOCK = SystemClock()


async def run(
    gateway: GatewayProcess,
    folder: MigrationFolder,
    dump: LegacyDump,
    plan: ImportPlan | None = None,
) -> ImportSummary:
    async with client_of(gateway) as client:
        return await import_dump(client, folder, dump, plan or ImportPlan(), CLOCK)


def mixed() -> LegacyDump:
    return dump_of(
        {
            "a": message(1),
            "b": message(2, to="cat"),
            "both": message(3, toAgentId=None, toAgents=["bob", "cat"], readBy=["cat"]),
            "old": message(4, status="read"),
            "broken": {"content": "for nobody"},
            "stray": message(5, to="nobody"),
        },
        {
            "t": {"title": "build", "assignedTo": "bob", "createdBy": "ann", "status": "pending"},
            "u": {"title": "built", "assignedTo": "bob", "status": "completed", "result": "ok"},
        },
    )


def test_an_import_hands_over_what_is_undelivered_and_accounts_for_the_rest(
    gateway: GatewayProcess, folder: MigrationFolder
) -> None:
    async def test() -> None:
        await register(gateway, "bob", "cat")
        history = folder.path / "history.jsonl"
        report = await run(gateway, folder, mixed(), ImportPlan(history=history))
        assert report.messages == ImportCounts(7, 3, 0, 2, 2)
        assert report.tasks == ImportCounts(2, 1, 0, 1, 0)
        assert report.total.is_balanced
        assert report.reasons == {"no_recipient": 1, "unknown_agent": 1}
        assert {row["id"] for row in rows(folder.rejects)} == {"broken", "stray"}
        assert [(row["id"], row["to"]) for row in rows(history)] == [
            ("both", "cat"),
            ("old", "bob"),
            ("u", "bob"),
        ]
        bob = await drain(gateway, "bob")
        assert payloads(bob)[:2] == [{"n": 1}, {"n": 3}]
        assert payloads(bob)[2]["legacyTask"]["title"] == "build"
        assert [one.from_ for one in bob] == ["ann", "ann", "ann"]
        assert payloads(await drain(gateway, "cat")) == [{"n": 2}]

    asyncio.run(test())


def test_a_second_run_adds_nothing_but_what_is_new(
    gateway: GatewayProcess, folder: MigrationFolder
) -> None:
    async def test() -> None:
        await register(gateway, "bob", "cat")
        await run(gateway, folder, mixed())
        await register(gateway, "nobody")
        again = await run(gateway, folder, mixed())
        assert again.total == ImportCounts(9, 1, 4, 3, 1)
        assert {row["id"] for row in rows(folder.rejects)} == {"broken"}
        newer = dump_of({"a": message(1), "c": message(9)})
        assert (await run(gateway, folder, newer)).total == ImportCounts(2, 1, 1, 0, 0)
        assert [p.get("n") for p in payloads(await drain(gateway, "bob"))] == [1, 3, None, 9]
        assert payloads(await drain(gateway, "nobody")) == [{"n": 5}]

    asyncio.run(test())


def test_the_ledger_outlives_the_memory_of_the_gateway(
    gateway: GatewayProcess, folder: MigrationFolder
) -> None:
    """Even under other names, under which the gateway has no such key."""

    async def test() -> None:
        await register(gateway, "bob", "zoe")
        await run(gateway, folder, dump_of({"a": message(1)}))
        renamed = ImportPlan(AgentNames({"ann": "eve", "bob": "zoe"}))
        assert (await run(gateway, folder, dump_of({"a": message(1)}), renamed)).total.already == 1
        assert not await drain(gateway, "zoe")

    asyncio.run(test())


def test_a_run_that_died_before_it_noted_the_answers_is_repeated_without_doubles(
    gateway: GatewayProcess, folder: MigrationFolder
) -> None:
    async def test() -> None:
        await register(gateway, "bob")
        dump = dump_of({str(n): message(n) for n in range(250)})
        await run(gateway, folder, dump)
        lines = folder.ledger.read_bytes().splitlines(keepends=True)
        assert ledger_states(folder) == (["intent"] * 100 + ["sent"] * 100) * 2 + (
            ["intent"] * 50 + ["sent"] * 50
        )
        replace_file(folder.ledger, b"".join(lines[:300]))
        again = await run(gateway, folder, dump)
        assert again.total == ImportCounts(250, 150, 100, 0, 0)
        taken = await drain(gateway, "bob")
        assert payloads(taken) == [{"n": n} for n in range(250)]

    asyncio.run(test())


def test_a_dry_run_counts_what_the_import_then_does(
    gateway: GatewayProcess, folder: MigrationFolder
) -> None:
    """The gateway refuses an unknown recipient, and an id that it has with other content."""

    async def test() -> None:
        await register(gateway, "bob")
        await register(gateway, "cat")
        (used,) = dump_of({"a": message(1)}).parse_items(AgentNames())
        dump = mixed()
        dump.records["messages"]["big"] = message(8, content="x" * 600_000)
        async with client_of(gateway) as client, lookup_of(gateway) as lookup:
            assert isinstance(used, LegacyItem)
            await client.send("bob", "other", from_="ann", idempotency_key=used.key)
            planned = await rehearse_import(lookup, folder, dump, ImportPlan(), CLOCK)
            assert await client.dequeue("cat") == []
            done = await import_dump(client, folder, dump, ImportPlan(), CLOCK)
        assert (planned.messages, planned.tasks) == (done.messages, done.tasks)
        assert planned.reasons == done.reasons
        assert {"unknown_agent", "conflict"} <= planned.reasons.keys()

    asyncio.run(test())


def test_a_survey_needs_no_gateway_and_changes_nothing(tmp_path: Path) -> None:
    report = survey_dump(MigrationFolder(tmp_path), mixed(), ImportPlan(), CLOCK)
    assert report.dry_run
    assert report.total == ImportCounts(9, 5, 0, 3, 1)
    assert not list(tmp_path.iterdir())


def test_two_imports_at_once_import_once(gateway: GatewayProcess, folder: MigrationFolder) -> None:
    async def test() -> None:
        await register(gateway, "bob")
        dump = dump_of({str(n): message(n) for n in range(500)})
        one, other = await asyncio.gather(run(gateway, folder, dump), run(gateway, folder, dump))
        assert one.total.is_balanced and other.total.is_balanced
        assert one.total.imported + other.total.imported == 500
        assert payloads(await drain(gateway, "bob")) == [{"n": n} for n in range(500)]

    asyncio.run(test())


def test_large_payloads_keep_their_place(gateway: GatewayProcess, folder: MigrationFolder) -> None:
    async def test() -> None:
        await register(gateway, "bob")
        sizes = [1, 100_000, 1, 1_200_000, 1, 300_000, 300_000, 1]
        dump = dump_of({str(n): message(n, content="x" * size) for n, size in enumerate(sizes)})
        assert (await run(gateway, folder, dump)).total.imported == len(sizes)
        async with client_of(gateway) as client:
            found = await client.dequeue("bob", limit=100)
            assert [len(await one.load()) for one in found] == sizes

    asyncio.run(test())


def test_a_gateway_that_is_away_ends_the_run_and_the_next_goes_on(
    gateway: GatewayProcess, folder: MigrationFolder
) -> None:
    async def test() -> None:
        await register(gateway, "bob")
        dump = dump_of({"a": message(1)})
        gateway.stop()
        with pytest.raises(Unavailable):
            await run(gateway, folder, dump)
        gateway.start()
        assert (await run(gateway, folder, dump)).total.imported == 1

    asyncio.run(test())


def test_a_full_mailbox_rejects_nothing_and_can_be_tried_again(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    async def test(gateway: GatewayProcess) -> None:
        folder = MigrationFolder(gateway.state_dir)
        await register(gateway, "bob")
        dump = dump_of({str(n): message(n) for n in range(5)})
        with pytest.raises(MailboxFull):
            await run(gateway, folder, dump)
        first = payloads(await drain(gateway, "bob"))
        await run(gateway, folder, dump)
        assert first + payloads(await drain(gateway, "bob")) == [{"n": n} for n in range(5)]

    home = tmp_path_factory.mktemp("full") / "state"
    with GatewayProcess(home, mailbox__max_pending=3) as gateway:
        asyncio.run(test(gateway))


def test_what_the_recipient_gets_beside_the_content(
    gateway: GatewayProcess, folder: MigrationFolder
) -> None:
    async def test() -> None:
        await register(gateway, "bob")
        await run(gateway, folder, dump_of({"a": message(1, correlationId="talk-7")}))
        (taken,) = await drain(gateway, "bob")
        assert taken.event is not None
        assert (taken.kind, taken.event.corr_id, taken.from_) == ("message", "talk-7", "ann")

    asyncio.run(test())


def test_after_cut_over_an_import_is_refused(
    gateway: GatewayProcess, folder: MigrationFolder
) -> None:
    enter_phase(folder, MigrationCommand.CUT_OVER, "new", 1)
    with pytest.raises(WrongState):
        asyncio.run(run(gateway, folder, mixed()))


def test_an_import_leaves_its_marker(gateway: GatewayProcess, folder: MigrationFolder) -> None:
    asyncio.run(run(gateway, folder, parse_dump(b'{"messages": {}}')))
    marker = load_marker(folder)
    assert marker is not None
    assert (marker.phase, marker.node_id, marker.counts) == (
        MigrationPhase.IMPORTING,
        "new",
        ImportCounts(),
    )


def sized(sizes: list[int]) -> list[Any]:
    return [item_of(str(n), content="x" * size) for n, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([1] * 250, [100, 100, 50]),
        ([300_000] * 3, [1, 1, 1]),
        ([1, 2_000_000, 1], [1, 1, 1]),
    ],
)
def test_batches_are_bounded_in_number_and_size(sizes: list[int], expected: list[int]) -> None:
    items = sized(sizes)
    found = list(split_batches(items))
    assert [len(batch) for batch in found] == expected
    assert [item for batch in found for item in batch] == items
