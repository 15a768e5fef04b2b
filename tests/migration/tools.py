"""What several tests of the migration need."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gatepost.client import Client, Message, locator
from gatepost.migration import (
    AgentNames,
    LegacyDump,
    LegacyItem,
    MigrationFolder,
    OutcomeClient,
    parse_dump,
)
from gatepost.migration.legacy_records import parse_legacy_record
from gatepost.testing import GatewayProcess


def message(number: int, to: str = "bob", **fields: Any) -> dict[str, Any]:
    """A legacy message that nobody has read yet."""
    start = {"fromAgentId": "ann", "toAgentId": to, "content": {"n": number}, "status": "pending"}
    return {**start, "createdAt": 1_700_000_000_000 + number, **fields}


def dump_of(messages: dict[str, Any], tasks: dict[str, Any] | None = None) -> LegacyDump:
    return parse_dump(json.dumps({"messages": messages, "tasks": tasks or {}}).encode())


def item_of(id: str = "1", **fields: Any) -> LegacyItem:
    (item,) = parse_legacy_record("messages", id, message(1, **fields), AgentNames())
    assert isinstance(item, LegacyItem)
    return item


def client_of(gateway: GatewayProcess) -> Client:
    return Client(state_dir=gateway.state_dir)


def lookup_of(gateway: GatewayProcess) -> OutcomeClient:
    return OutcomeClient(locator(gateway.state_dir)())


async def register(gateway: GatewayProcess, *names: str) -> None:
    async with client_of(gateway) as client:
        for name in names:
            await client.register(name)


async def drain(gateway: GatewayProcess, name: str) -> list[Message]:
    """Everything that waits for an agent, taken and acknowledged."""
    taken: list[Message] = []
    async with client_of(gateway) as client:
        while found := await client.dequeue(name, limit=1000):
            for one in found:
                client.ack(name, one.receipt)
            await client.status()
            taken += found
    return taken


def ledger_states(folder: MigrationFolder) -> list[str]:
    """The state of every line, in the order of the file."""
    if not folder.ledger.exists():
        return []
    whole = folder.ledger.read_bytes().rpartition(b"\n")[0]
    return [json.loads(line)["state"] for line in whole.splitlines()]


def rows(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def payloads(messages: Iterable[Message]) -> list[Any]:
    return [one.payload for one in messages]
