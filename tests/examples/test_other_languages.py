"""The examples in shell and Node, and the blocks of docs/agents.md, as their reader runs them."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gatepost.client import SyncClient
from gatepost.errors import TurnFailed
from gatepost.testing import GatewayProcess
from tests.cli.conftest import Cli
from tests.cli.conftest import gateway as public_gateway
from tests.waiting import wait_until

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"
PAGE = (ROOT / "docs" / "agents.md").read_text()
_MOST_LINES = 5

needs_node = pytest.mark.skipif(not shutil.which("node"), reason="node is not installed")
needs_jq = pytest.mark.skipif(not shutil.which("jq"), reason="jq is not installed")


def block(name: str) -> str:
    """The code of docs/agents.md that the tests run under this name."""
    (found,) = re.findall(rf"<!-- runs: {re.escape(name)} -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    assert len(found.splitlines()) <= _MOST_LINES
    return str(found)


def commands(name: str) -> list[str]:
    return [line.removeprefix("$ ") for line in block(name).splitlines()]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    state_dir = tmp_path_factory.mktemp("languages") / "state"
    with GatewayProcess(state_dir, mailbox__max_retries=0) as process:
        yield process


@pytest.fixture
def env(gateway: GatewayProcess) -> dict[str, str]:
    """The environment of a person who has installed Gatepost."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GATEPOST_")}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return kept | {"GATEPOST_HOME": str(gateway.state_dir), "PATH": path}


@contextmanager
def running(
    *command: str, env: dict[str, str], cwd: Path = ROOT
) -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(command, env=env, cwd=cwd, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def output_of(*command: str, env: dict[str, str], cwd: Path = ROOT) -> str:
    done = subprocess.run(
        command, env=env, cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def register(gateway: GatewayProcess, *names: str) -> None:
    with SyncClient("tester", state_dir=gateway.state_dir) as client:
        for name in names:
            client.register(name)


# -- the page


def test_the_shell_agent_of_the_page_counts_and_refuses(
    gateway: GatewayProcess, env: dict[str, str], tmp_path: Path
) -> None:
    register(gateway, "counter")
    script = tmp_path / "count.sh"
    script.write_text(block("count.sh"))
    script.chmod(0o755)
    start, send = commands("bash")
    agent = start.removesuffix(" &").split()
    with running(*agent, env=env, cwd=tmp_path):
        assert "cli sent 4 words" in output_of("sh", "-c", send, env=env, cwd=tmp_path)
        with (
            SyncClient("tester", state_dir=gateway.state_dir) as client,
            pytest.raises(TurnFailed, match="there is nothing to count"),
        ):
            client.request("counter", "")


@needs_node
def test_the_programs_in_node_of_the_page_greet_each_other(
    gateway: GatewayProcess, env: dict[str, str], tmp_path: Path
) -> None:
    register(gateway, "greeter")
    shutil.copy(ROOT / "clients" / "typescript" / "gatepost.js", tmp_path)
    for name in ("greeter.mjs", "ask.mjs"):
        (tmp_path / name).write_text(block(name))
    with running("node", "greeter.mjs", env=env, cwd=tmp_path):
        said = output_of("node", "ask.mjs", env=env, cwd=tmp_path)
    assert said == "hello visitor, you said good morning\n"


def test_the_commands_of_the_page_reach_a_gateway_elsewhere(tmp_path: Path) -> None:
    vps, laptop = Cli(tmp_path / "vps"), Cli(tmp_path / "laptop")
    vps.ok("init", "--public", "--host", "127.0.0.1", "--node-id", "vps")
    invite, script = tmp_path / "invite.txt", tmp_path / "count.sh"
    script.write_text(block("count.sh"))
    script.chmod(0o755)
    with public_gateway(vps.home, lambda cli: (cli.home / "endpoint.json").exists()):
        invite.touch(0o600)
        invite.write_text(vps.json("agent", "invite", "laptop")["inviteToken"])
        url = json.loads((vps.home / "endpoint.json").read_bytes())["url"]
        env = laptop.env | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        add, send, run = (
            each.replace("https://vps.example:7433", url) for each in commands("context")
        )
        assert "as laptop" in output_of("sh", "-c", add, env=env, cwd=tmp_path)
        vps.ok("agent", "add", "reviewer")
        reviewer = ("agent", "run", "reviewer", "--", "echo", "looks good")
        with vps.running(*reviewer), running(*run.split(), env=env, cwd=tmp_path):
            assert "looks good" in output_of("sh", "-c", send, env=env, cwd=tmp_path)
            wait_until(lambda: "laptop" in vps.ok("agent", "list"))
            said = vps.ok("send", "laptop", "two words", "--wait", "processed")
            assert "cli sent 2 words" in said


# -- the examples


@needs_jq
def test_the_handler_counts_and_the_asking_script_prints_its_reply(
    gateway: GatewayProcess, env: dict[str, str]
) -> None:
    register(gateway, "counter2")
    run = ("gatepost", "agent", "run", "counter2", "--", str(EXAMPLES / "word_count.sh"))
    with running(*run, env=env):
        ask = (str(EXAMPLES / "ask.sh"), "counter2", "how many words; $(exit 7)")
        for _ in range(2):
            said = json.loads(output_of(*ask, env=env))
            assert said == {"words": 5, "attempt": 0}
        with SyncClient("tester", state_dir=gateway.state_dir) as client:
            assert len(client.peek("counter2")) == 0
            with pytest.raises(TurnFailed, match="of tester has no words"):
                client.request("counter2", "")


@needs_jq
def test_the_worker_settles_all_its_mail_and_ends(
    gateway: GatewayProcess, env: dict[str, str]
) -> None:
    register(gateway, "batch")
    with SyncClient("tester", state_dir=gateway.state_dir) as client:
        sent = [client.send("batch", payload) for payload in ("one two", "$(reboot)", {"n": 1})]
        output_of(str(EXAMPLES / "worker.sh"), "batch", env=env)
        ends = [client.await_outcome(each.event_id) for each in sent]
    assert [each.outcome for each in ends] == ["ok", "ok", "dead_letter"]
    assert "no text" in str(ends[2].reason)


@needs_node
def test_the_agent_in_node_replies_refuses_and_does_tasks(
    gateway: GatewayProcess, env: dict[str, str]
) -> None:
    register(gateway, "translator")
    with (
        running("node", "examples/node_agent.mjs", env=env) as process,
        SyncClient("tester", state_dir=gateway.state_dir) as client,
    ):
        assert client.request("translator", {"text": "hello"}) == {"text": "HELLO"}
        with pytest.raises(TurnFailed, match="no text to translate"):
            client.request("translator", 7)
        assert client.run_task("files", to="translator", input=["a", "b"]) == ["A", "B"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
