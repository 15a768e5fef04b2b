"""Proofs of a message that went through a relay, and their verification where no gateway is."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gatepost.client import Agent, Client, Message
from gatepost.errors import ProofRejected, UnknownAgent
from gatepost.proof.verification import verify_proof
from tests.cli.conftest import Cli
from tests.live_mesh.tools import Gateway
from tests.waiting import async_wait_until, wait_until

# A public address nobody can dial: left and right reach each other through the seed only.
UNREACHABLE = "http://127.0.0.1:9"
SECRET = "the launch is on Friday"


@pytest.fixture(scope="module")
def gateways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Gateway]]:
    folder = tmp_path_factory.mktemp("proof")
    left, right = (
        Gateway(folder, name, room__public_url=UNREACHABLE) for name in ("left", "right")
    )
    with Gateway(folder, "seed") as seed, left, right:
        left.join(seed, "edge")
        right.join(seed, "edge")
        yield [seed, left, right]


@pytest.fixture(scope="module")
def event_id(gateways: list[Gateway]) -> str:
    """A message from left to right, whose turn ended with a reply."""
    _, left, right = gateways
    return asyncio.run(_exchange(left, right))


async def _exchange(left: Gateway, right: Gateway) -> str:
    agent = Agent("planner", url=right.url, token=right.token)

    @agent.on_message
    async def handle(message: Message) -> object:
        return {"noted": True}

    async with agent, Client("boss", url=left.url, token=left.token) as client:

        async def send() -> str | None:
            try:
                return (await client.send("planner", SECRET, wait="processed")).event_id
            except UnknownAgent:
                return None

        return str(await async_wait_until(send, 40))


@pytest.fixture
def auditor(tmp_path: Path) -> Cli:
    """A machine that has no gateway, nor any file of one."""
    return Cli(tmp_path / "auditor" / "state")


def prove(gateway: Gateway, event_id: str, file: Path, *options: str) -> Any:
    return Cli(gateway.state_dir).json("proof", event_id, "-o", str(file), *options)


def genesis_key(gateway: Gateway) -> str:
    shown = Cli(gateway.state_dir).ok("room", "show")
    (line,) = [each for each in shown.splitlines() if each.startswith("genesis key ")]
    return line.removeprefix("genesis key ")


def test_a_proof_through_a_relay_verifies_with_the_genesis_key_alone(
    gateways: list[Gateway], event_id: str, auditor: Cli, tmp_path: Path
) -> None:
    seed, left, right = gateways
    assert not left.connected_to("right")
    for maker in (left, right):
        file = tmp_path / f"{maker.name}.json"
        written = prove(maker, event_id, file)
        assert written["genesis_key"] == genesis_key(seed)
        done = auditor.in_own_process("verify", str(file), "--genesis", genesis_key(seed))
        assert (done.code, done.err) == (0, "")
        proven, _, not_proven = done.out.partition("Not proven:")
        assert "left signed a message of boss to planner on " in proven
        assert "that it has the message on disk for planner" in proven
        assert "that the turn of planner ended: ok" in proven
        assert "right signed a reply of planner to it" in proven
        assert "seed checked the outbox of left with exactly these bytes" in proven
        assert "what the message says: its payload is encrypted here" in not_proven
        assert SECRET not in file.read_text() + done.out


def test_a_flipped_byte_anywhere_is_refused(
    gateways: list[Gateway], event_id: str, auditor: Cli, tmp_path: Path
) -> None:
    """Every byte of a real file; some of them through the command."""
    file, key = tmp_path / "proof.json", genesis_key(gateways[0])
    prove(gateways[1], event_id, file, "--with-payload")
    data, draw = file.read_bytes(), random.Random(26)
    for at in range(len(data)):
        flipped = data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]
        with pytest.raises(ProofRejected):
            verify_proof(flipped, bytes.fromhex(key))
    for at in draw.sample(range(len(data)), 10):
        file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        result = auditor("verify", str(file), "--genesis", key, "--json")
        assert (result.code, result.error["code"]) == (1, "proof_rejected"), at
    file.write_bytes(data)
    assert auditor("verify", str(file), "--genesis", key).code == 0


def test_payloads_are_shown_only_if_asked_for(
    gateways: list[Gateway], event_id: str, auditor: Cli, tmp_path: Path
) -> None:
    file, key = tmp_path / "proof.json", genesis_key(gateways[0])
    for maker in gateways[1:]:
        prove(maker, event_id, file)
        assert auditor.json("verify", str(file), "--genesis", key)["payloads"] == {}
        prove(maker, event_id, file, "--with-payload")
        report = auditor.json("verify", str(file), "--genesis", key)
        assert report["payloads"].pop(event_id) == SECRET
        assert [*report["payloads"].values()] == [{"noted": True}]
        assert SECRET in auditor.ok("verify", str(file), "--genesis", key)


def test_a_gateway_that_had_no_part_in_it_makes_no_proof(
    gateways: list[Gateway], event_id: str, tmp_path: Path
) -> None:
    file = tmp_path / "proof.json"
    result = Cli(gateways[0].state_dir)("proof", event_id, "-o", str(file), "--json")
    assert (result.code, result.error["code"]) == (1, "unknown_message")
    assert not file.exists()


def test_the_receipt_of_a_revoked_gateway_says_so(
    gateways: list[Gateway], event_id: str, auditor: Cli, tmp_path: Path
) -> None:
    """The last test of this module: nobody reaches right any more."""
    seed, left, _ = gateways
    before, after, key = tmp_path / "before.json", tmp_path / "after.json", genesis_key(seed)
    prove(left, event_id, before)
    seed.call("POST", "/room/nodes/right/revoke", {"last_seq": 1})
    wait_until(lambda: "right" not in left.nodes())
    old = auditor.json("verify", str(before), "--genesis", key)
    assert [each["problem"] for each in old["receipts"]] == ["", ""]
    assert any("that no gateway was revoked after" in each for each in old["not_proven"])
    prove(left, event_id, after, "--earlier", str(before))
    report = auditor.json("verify", str(after), "--genesis", key)
    (right,) = [each for each in report["nodes"] if each["node"] == "right"]
    assert (right["standing"], right["revoked_by"], right["last_seq"]) == ("revoked", "seed", 1)
    said = {each["status"]: each["problem"] for each in report["receipts"]}
    assert said["accepted"] == ""
    assert "right was revoked by seed" in said["processed"]
    shown = auditor.ok("verify", str(after), "--genesis", key)
    assert "its events up to 1 still count" in shown
    assert "this receipt does not count" in shown
    assert "what right signed about it: it is not a member of the room any more" in shown
