"""Cutting over: only when everything is there, and then for good."""

import asyncio
import json

import pytest

from gatepost.clock import SystemClock
from gatepost.errors import WrongState
from gatepost.migration import CutOverResult, ImportPlan, LegacyDump, MigrationFolder, cut_over
from gatepost.migration.migration_files import replace_file
from gatepost.migration.phase_marker import MigrationPhase, load_marker
from gatepost.testing import GatewayProcess
from tests.migration.tools import (
    client_of,
    drain,
    dump_of,
    lookup_of,
    message,
    payloads,
    register,
    rows,
)


async def run(
    gateway: GatewayProcess,
    folder: MigrationFolder,
    dump: LegacyDump,
    *,
    leave_rejects: bool = False,
) -> CutOverResult:
    async with client_of(gateway) as client, lookup_of(gateway) as lookup:
        parts = (client, lookup, folder, dump, ImportPlan(), SystemClock())
        return await cut_over(*parts, leave_rejects=leave_rejects)


def test_it_imports_what_is_left_proves_it_and_marks_the_end(
    gateway: GatewayProcess, folder: MigrationFolder
) -> None:
    async def test() -> None:
        await register(gateway, "bob")
        dump = dump_of({"a": message(1), "b": message(2, status="read")})
        done = await run(gateway, folder, dump)
        assert done.report.total.is_balanced and done.proof.is_complete
        assert load_marker(folder) == done.marker
        assert done.marker.phase is MigrationPhase.CUT_OVER
        assert payloads(await drain(gateway, "bob")) == [{"n": 1}]

    asyncio.run(test())


def test_rejects_stand_against_it_unless_they_are_given_up(
    gateway: GatewayProcess, folder: MigrationFolder
) -> None:
    async def test() -> None:
        await register(gateway, "bob")
        dump = dump_of({"a": message(1), "b": {}, "c": message(3, to="nobody")})
        with pytest.raises(WrongState, match="2 items were rejected"):
            await run(gateway, folder, dump)
        assert load_marker(folder) is None
        await run(gateway, folder, dump, leave_rejects=True)
        assert {row["id"] for row in rows(folder.rejects)} == {"b", "c"}
        assert payloads(await drain(gateway, "bob")) == [{"n": 1}]

    asyncio.run(test())


def test_it_is_repeated_for_what_old_writers_wrote_later(
    gateway: GatewayProcess, folder: MigrationFolder
) -> None:
    async def test() -> None:
        await register(gateway, "bob")
        await run(gateway, folder, dump_of({"a": message(1)}))
        later = await run(gateway, folder, dump_of({"a": message(1), "b": message(2)}))
        assert (later.report.total.already, later.report.total.imported) == (1, 1)
        assert payloads(await drain(gateway, "bob")) == [{"n": 1}, {"n": 2}]

    asyncio.run(test())


def test_what_an_interrupted_dual_write_left_goes_to_the_gateway(
    gateway: GatewayProcess, folder: MigrationFolder
) -> None:
    async def test() -> None:
        await register(gateway, "bob")
        replace_file(folder.mirror_group, json.dumps({"m": message(9)}).encode())
        await run(gateway, folder, dump_of({"a": message(1)}))
        assert not folder.mirror_group.exists()
        assert payloads(await drain(gateway, "bob")) == [{"n": 9}, {"n": 1}]

    asyncio.run(test())
