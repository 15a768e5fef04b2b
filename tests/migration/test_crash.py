"""2,000 legacy messages, the importer and the gateway killed on the way: all there, none twice."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gatepost
from gatepost.migration import MigrationFolder
from gatepost.testing import GatewayProcess
from tests.migration.tools import drain, ledger_states, message, register, rows

SOURCE = Path(gatepost.__file__).parents[1]
TOTAL = 2000
RECEIVERS = ("bob", "cat", "dan")
SENDERS = ("ann", "eve")


def legacy() -> dict[str, Any]:
    """Every 20th is broken, every 10th was read already, and a task among them here and there."""
    messages: dict[str, Any] = {}
    for n in range(TOTAL):
        record = message(n, RECEIVERS[n % 3], fromAgentId=SENDERS[n % 2])
        if n % 20 == 7:
            record["toAgentId"] = ["no agent", None, "stranger"][n // 20 % 3]
        elif n % 10 == 3:
            record["status"] = "acked"
        messages[f"m-{n}"] = record
    tasks = {
        f"t-{n}": {"title": f"task {n}", "assignedTo": RECEIVERS[n % 3], "status": "pending"}
        for n in range(30)
    }
    return {"messages": messages, "tasks": tasks, "agents": {}}


class Run:
    """`gatepost migrate import`, as a process that may be killed."""

    def __init__(self, dump: Path, folder: MigrationFolder) -> None:
        env = {k: v for k, v in os.environ.items() if not k.startswith("GATEPOST_")}
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gatepost.cli", "--json", "migrate", "import", str(dump)],
            env=env | {"GATEPOST_HOME": str(folder.path), "PYTHONPATH": str(SOURCE)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def reach(self, lines: int) -> None:
        """Wait until the ledger has grown to this."""
        deadline = time.monotonic() + 30
        while len(ledger_states(self._folder)) < lines:
            assert self._process.poll() is None, "it ended before it could be interrupted"
            assert time.monotonic() < deadline
            # Often, because a whole import takes only a moment.
            time.sleep(0.001)

    def stop_behind(self, gateway: GatewayProcess) -> None:
        """Stop it where the gateway has messages that the ledger does not know to be sent."""
        while self._process.poll() is None:
            self._process.send_signal(signal.SIGSTOP)
            # What has left by now is answered and committed, but not noted.
            waiting = gateway.get("/v1/status")["waiting"]
            if waiting > ledger_states(self._folder).count("sent"):
                return
            self._process.send_signal(signal.SIGCONT)
            # It goes on for a moment, and is then looked at again.
            time.sleep(0.001)
        raise AssertionError("it ended before it could be interrupted")

    def kill9(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=10)
        assert self._process.returncode == -9

    def finish(self) -> Any:
        out, err = self._process.communicate(timeout=60)
        assert self._process.returncode == 0, err
        return json.loads(out)


def test_nothing_is_lost_or_doubled_when_everything_is_killed(
    gateway: GatewayProcess,
    folder: MigrationFolder,
    tmp_path: Path,
    count: Callable[[int, int], int],
) -> None:
    dump = tmp_path / "dump.json"
    document = legacy()
    dump.write_text(json.dumps(document))
    asyncio.run(register(gateway, *RECEIVERS))

    for _ in range(count(1, 10)):
        run = Run(dump, folder)
        run.reach(len(ledger_states(folder)) + 50)
        run.stop_behind(gateway)
        run.kill9()
    run = Run(dump, folder)
    run.reach(len(ledger_states(folder)) + 50)
    gateway.kill9()
    run.kill9()
    gateway.start()

    run = Run(dump, folder)
    run.reach(len(ledger_states(folder)) + 300)
    gateway.restart()
    report = run.finish()

    total = report["total"]
    assert report["balanced"]
    assert total["read"] == TOTAL + 30
    assert (total["rejected"], total["history"]) == (100, 200)
    assert total["imported"] + total["already"] == TOTAL + 30 - 300
    assert 0 < total["already"] < TOTAL
    assert report["reasons"] == {"bad_agent": 34, "no_recipient": 33, "unknown_agent": 33}
    assert len(rows(folder.rejects)) == 100
    again = Run(dump, folder).finish()["total"]
    assert (again["imported"], again["already"]) == (0, TOTAL + 30 - 300)
    _check_mailboxes(gateway, document)


def _check_mailboxes(gateway: GatewayProcess, document: dict[str, Any]) -> None:
    messages = document["messages"]
    fine = [n for n in range(TOTAL) if n % 20 != 7]
    expected = {n for n in fine if messages[f"m-{n}"]["status"] != "acked"}
    seen: Counter[object] = Counter()
    order: dict[tuple[str, str], list[int]] = defaultdict(list)
    for name in RECEIVERS:
        for one in asyncio.run(drain(gateway, name)):
            number = one.payload.get("n", one.payload.get("legacyTask", {}).get("id"))
            seen[number] += 1
            if isinstance(number, int):
                order[one.from_, name].append(number)
    assert seen.keys() == expected | {f"t-{n}" for n in range(30)}
    assert set(seen.values()) == {1}
    assert len(order) == 6
    for pair, numbers in order.items():
        assert numbers == sorted(numbers), f"out of order: {pair}"


@pytest.mark.timeout(120)
def test_the_proof_of_the_whole(
    gateway: GatewayProcess, folder: MigrationFolder, tmp_path: Path
) -> None:
    dump = tmp_path / "dump.json"
    dump.write_text(json.dumps(legacy()))
    asyncio.run(register(gateway, *RECEIVERS))
    Run(dump, folder).finish()
    env = os.environ | {"GATEPOST_HOME": str(folder.path), "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-m", "gatepost.cli", "--json", "migrate", "verify", str(dump)]
    done = subprocess.run(command, env=env, capture_output=True, check=True, timeout=60)
    proof = json.loads(done.stdout)
    assert proof["holds"]
    assert proof["outcomes"] == {"waiting": TOTAL + 30 - 300}
