"""Each example does what its text says, at a real gateway, as its reader would run it."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gatepost.cli.runner import run_command
from gatepost.client import SyncClient
from gatepost.testing import GatewayProcess

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("examples") / "state") as process:
        yield process


def start_example(gateway: GatewayProcess, name: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py")],
        env=os.environ | {"GATEPOST_HOME": str(gateway.state_dir), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output_of(gateway: GatewayProcess, name: str) -> list[str]:
    with start_example(gateway, name) as process:
        shown, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    return shown.splitlines()


def test_the_agent_replies_and_ends_with_exit_code_0_when_it_is_asked_to(
    gateway: GatewayProcess,
) -> None:
    with SyncClient("al", state_dir=gateway.state_dir) as client:
        client.register("summariser")
        with start_example(gateway, "summariser") as process:
            reply = client.request("summariser", {"text": "x" * 100}, timeout=60)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
    assert reply == {"summary": "x" * 80}


def test_a_request_returns_the_reply_or_raises_the_reason(gateway: GatewayProcess) -> None:
    reply, failure = output_of(gateway, "request_reply")
    assert reply == "{'sum': 6}"
    assert "there is nothing to add" in failure


def test_the_workers_of_a_queue_share_its_messages(gateway: GatewayProcess) -> None:
    assert output_of(gateway, "work_queue") == ["12 images by 3 workers"]


def test_the_requester_of_a_task_sees_its_progress_and_its_result(gateway: GatewayProcess) -> None:
    *seen, result = output_of(gateway, "task_progress")
    assert result == "{'indexed': 4}"
    assert seen[-1].startswith("completed")
    shares = [int(share) for line in seen if (share := re.findall(r"(\d+)%", line)[0])]
    assert shares == sorted(shares) and {25, 50, 75} & set(shares)


def test_a_result_that_breaks_the_contract_of_a_capability_fails_its_task(
    gateway: GatewayProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEPOST_HOME", str(gateway.state_dir))
    # The commands of the example's docstring.
    text = (EXAMPLES / "capability.py").read_text()
    commands = re.findall(r"^    gatepost (.+)$", text, re.MULTILINE)
    assert len(commands) == 2
    monkeypatch.chdir(ROOT)
    assert [run_command(command.split()) for command in commands] == [0, 0]
    assert output_of(gateway, "capability") == [
        "a comment: fine",
        "everything: contract_mismatch",
    ]
