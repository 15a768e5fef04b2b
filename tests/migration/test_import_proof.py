"""The proof: it holds when everything is there once, and fails when anything is not."""

import asyncio

import msgspec
import pytest

from gatepost.clock import SystemClock
from gatepost.errors import Unavailable
from gatepost.migration import (
    AgentNames,
    ImportPlan,
    ImportProof,
    LegacyDump,
    MigrationFolder,
    import_dump,
    verify_import,
)
from gatepost.migration.migration_files import replace_file
from gatepost.migration.migration_ledger import LedgerEntry
from gatepost.testing import GatewayProcess
from tests.migration.tools import client_of, drain, dump_of, lookup_of, message, register

CLOCK = SystemClock()
UNKNOWN = "0192f000-0000-7000-8000-000000000000"


async def imported(gateway: GatewayProcess, folder: MigrationFolder, dump: LegacyDump) -> None:
    await register(gateway, "bob")
    async with client_of(gateway) as client:
        await import_dump(client, folder, dump, ImportPlan(), CLOCK)


async def proof_of(
    gateway: GatewayProcess, folder: MigrationFolder, dump: LegacyDump
) -> ImportProof:
    async with lookup_of(gateway) as lookup:
        return await verify_import(lookup, folder, dump, AgentNames(), CLOCK)


def rewrite(folder: MigrationFolder, event_ids: list[str], state: str = "sent") -> None:
    """A ledger that claims these events for the items it has sent."""
    lines = folder.ledger.read_bytes().splitlines()
    entries = [msgspec.json.decode(line, type=LedgerEntry) for line in lines]
    sent = [entry for entry in entries if entry.state == "sent"]
    told = [
        msgspec.json.encode(msgspec.structs.replace(entry, event_id=id)).replace(
            b'"sent"', f'"{state}"'.encode()
        )
        for entry, id in zip(sent, event_ids, strict=True)
    ]
    replace_file(folder.ledger, b"".join(line + b"\n" for line in told))


def test_it_holds_and_says_how_far_the_messages_are(
    gateway: GatewayProcess, folder: MigrationFolder
) -> None:
    async def test() -> None:
        dump = dump_of(
            {
                "a": message(1),
                "b": message(2),
                "c": message(3, status="read"),
                "d": {},
                "e": message(5, to="nobody"),
            }
        )
        await imported(gateway, folder, dump)
        proof = await proof_of(gateway, folder, dump)
        assert proof.is_complete
        assert proof.outcomes == {"waiting": 2}
        assert (proof.imported, proof.history, proof.rejected) == (2, 1, 2)
        await drain(gateway, "bob")
        assert (await proof_of(gateway, folder, dump)).outcomes == {"ok": 2}

    asyncio.run(test())


def test_it_fails_if_something_was_not_imported(
    gateway: GatewayProcess, folder: MigrationFolder
) -> None:
    async def test() -> None:
        await imported(gateway, folder, dump_of({"a": message(1)}))
        proof = await proof_of(gateway, folder, dump_of({"a": message(1), "b": message(2)}))
        assert not proof.is_complete
        assert proof.left == ["messages/b to bob"]

    asyncio.run(test())


def test_it_fails_if_the_gateway_does_not_know_a_message(
    gateway: GatewayProcess, folder: MigrationFolder
) -> None:
    async def test() -> None:
        dump = dump_of({"a": message(1)})
        await imported(gateway, folder, dump)
        rewrite(folder, [UNKNOWN])
        proof = await proof_of(gateway, folder, dump)
        assert not proof.is_complete
        assert proof.missing == ["messages/a to bob"]

    asyncio.run(test())


def test_it_fails_if_two_items_are_one_message(
    gateway: GatewayProcess, folder: MigrationFolder
) -> None:
    async def test() -> None:
        dump = dump_of({"a": message(1), "b": message(2)})
        await imported(gateway, folder, dump)
        (first, _) = await drain(gateway, "bob")
        rewrite(folder, [first.msg_id] * 2)
        proof = await proof_of(gateway, folder, dump)
        assert not proof.is_complete
        assert len(proof.doubled) == 2

    asyncio.run(test())


def test_what_was_seen_settled_may_be_forgotten_by_the_gateway(
    gateway: GatewayProcess, folder: MigrationFolder
) -> None:
    async def test() -> None:
        dump = dump_of({"a": message(1)})
        await imported(gateway, folder, dump)
        rewrite(folder, [UNKNOWN], "settled")
        proof = await proof_of(gateway, folder, dump)
        assert proof.is_complete
        assert proof.outcomes == {"settled": 1}

    asyncio.run(test())


def test_without_a_gateway_there_is_no_proof(
    gateway: GatewayProcess, folder: MigrationFolder
) -> None:
    async def test() -> None:
        dump = dump_of({"a": message(1)})
        await imported(gateway, folder, dump)
        lookup = lookup_of(gateway)
        gateway.stop()
        async with lookup:
            with pytest.raises(Unavailable):
                await verify_import(lookup, folder, dump, AgentNames(), CLOCK)

    asyncio.run(test())
