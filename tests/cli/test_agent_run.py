"""`gatepost agent run`: a command is an agent, here and at a gateway elsewhere."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from subprocess import Popen
from typing import Any

import msgspec
import psutil  # type: ignore[import-untyped]
import pytest
from msgspec import Raw

from gatepost.cli.handler_command import handler_environment
from gatepost.client import Sent, SyncClient
from gatepost.errors import TurnFailed
from tests.cli.conftest import Cli, gateway
from tests.waiting import wait_until

Run = Callable[..., Any]


@pytest.fixture
def client(cli: Cli) -> Iterator[SyncClient]:
    with SyncClient("tester", state_dir=cli.home) as connected:
        yield connected


@pytest.fixture
def run(cli: Cli, tmp_path: Path) -> Run:
    """Runs a shell script as an agent: `with run("upper", "tr a-z A-Z"):`."""

    @contextmanager
    def running(name: str, script: str, *options: str, on: Cli = cli) -> Iterator["Popen[str]"]:
        file = tmp_path / f"{name}.sh"
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
        with on.running("agent", "run", name, *options, "--", str(file)) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if "is ready for mail" in line:
                    break
            else:
                pytest.fail("the agent ended at its start")
            yield process

    return running


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid)


def reply_of(sent: Sent) -> Any:
    assert isinstance(sent.reply, Raw)
    return msgspec.json.decode(sent.reply)


def test_the_output_is_the_reply(run: Run, client: SyncClient) -> None:
    with run("upper", "tr a-z A-Z"):
        assert client.request("upper", "hello\nworld") == "HELLO\nWORLD"
    with run("cat", "cat"):
        assert client.request("cat", {"n": [1, "é", None]}) == {"n": [1, "é", None]}
        assert client.request("cat", "no newline is added, nor kept\n\n") == (
            "no newline is added, nor kept"
        )
        assert client.request("cat", "42") == 42
        assert client.request("cat", "") is None
    with run("text", "cat", "--text"):
        assert client.request("text", "1.10") == "1.10"


def test_a_command_knows_its_message_and_reaches_its_gateway(
    cli: Cli, run: Run, client: SyncClient
) -> None:
    client.register("logbook")
    script = (
        'gatepost send logbook "$GATEPOST_SENDER $GATEPOST_KIND" --from $GATEPOST_AGENT >&2\n'
        'echo "$GATEPOST_MESSAGE_ID $GATEPOST_CORRELATION_ID $GATEPOST_ATTEMPT $GATEPOST_PAYLOAD"'
    )
    cli.env["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with run("curious", script):
        sent = client.send("curious", "x", corr_id="case-7", wait="processed")
        assert reply_of(sent) == f"{sent.event_id} case-7 0 text"
    (mail,) = client.dequeue("logbook", wait_secs=5)
    assert (mail.from_, mail.payload) == ("curious", "tester message")


def test_a_failing_command_fails_its_turn_with_its_last_line(
    cli: Cli, run: Run, client: SyncClient
) -> None:
    """The gateway of these tests retries nothing."""
    script = 'echo first >&2; echo "disk is full" >&2; echo >&2; exit 3'
    with run("failing", script), pytest.raises(TurnFailed, match=r"disk is full$"):
        client.request("failing", "x")
    (letter,) = cli.json("dlq", "list", "failing")["messages"]
    assert letter["reason"] == "max_retries exhausted: disk is full"
    with run("silent", "exit 7"), pytest.raises(TurnFailed, match=r"exit code 7$"):
        client.request("silent", "x")
    with run("dying", "kill -9 $$"), pytest.raises(TurnFailed, match=r"ended by SIGKILL$"):
        client.request("dying", "x")
    with run("odd", r"printf '\377\376'"), pytest.raises(TurnFailed, match="neither JSON nor"):
        client.request("odd", "x")


def test_a_secret_on_standard_error_does_not_become_the_reason(
    run: Run, client: SyncClient
) -> None:
    script = 'echo "password=hunter2" >&2; exit 1'
    with run("leaky", script), pytest.raises(TurnFailed) as caught:
        client.request("leaky", "x")
    assert "hunter2" not in str(caught.value)


def test_no_word_of_a_message_is_run_or_becomes_an_argument(
    run: Run, client: SyncClient, tmp_path: Path
) -> None:
    trap = tmp_path / "trap"
    payload = f"$(touch {trap}); `touch {trap}`\n'; touch {trap} #"
    with run("careful", 'echo "$#"; cat'):
        assert client.request("careful", payload) == f"0\n{payload}"
    assert not trap.exists()


def test_a_command_ends_at_its_time_limit_with_all_that_it_started(
    run: Run, client: SyncClient, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    script = f"trap '' TERM; sleep 1000 & echo $! $$ >{pids}; sleep 1000"
    limit = ("--time-limit", "1")
    with run("stuck", script, *limit), pytest.raises(TurnFailed, match=r"longer than 1 s$"):
        client.request("stuck", "x")
    for pid in pids.read_text().split():
        wait_until(partial(is_gone, int(pid)))


def test_what_a_command_leaves_running_is_killed_and_holds_nothing_up(
    run: Run, client: SyncClient, tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    with run("daemon", f"sleep 1000 & echo $! >{pid}; echo done"):
        assert client.request("daemon", "x", timeout=10) == "done"
    wait_until(partial(is_gone, int(pid.read_text())))


def test_large_payloads_and_replies_and_a_command_that_reads_nothing(
    run: Run, client: SyncClient, tmp_path: Path
) -> None:
    payload = "x" * 3_000_000
    with run("big", "cat"):
        assert client.request("big", payload, timeout=60) == payload
    with run("deaf", "echo done"):
        assert client.request("deaf", payload, timeout=60) == "done"
    raw = tmp_path / "raw"
    raw.write_bytes(bytes(range(256)) * 4000)
    with run("counter", 'echo "$GATEPOST_PAYLOAD $(wc -c)"'):
        sent = client.send("counter", payload_file=raw, wait="processed", timeout=60)
        assert reply_of(sent) == "bytes 1024000"


def test_a_command_that_floods_its_output_fails(run: Run, client: SyncClient) -> None:
    with run("flood", "yes"), pytest.raises(TurnFailed, match="larger than 64 MiB"):
        client.request("flood", "x", timeout=60)


def test_messages_of_several_senders_are_handled_at_once(
    cli: Cli, run: Run, client: SyncClient, tmp_path: Path
) -> None:
    """Each command waits until all three run."""
    here = f"touch {tmp_path}/$GATEPOST_SENDER.on"
    script = f"{here}; while [ $(ls {tmp_path}/*.on | wc -l) -lt 3 ]; do sleep 0.05; done; echo ok"
    with run("meeting", script, "--concurrency", "3", "--time-limit", "20"):
        sent = [client.send("meeting", "x", from_=f"s{n}") for n in range(3)]
        for each in sent:
            ended = client.await_outcome(each.event_id, timeout=30)
            assert ended.outcome == "ok", ended.reason


def test_sigterm_lets_the_running_command_end_and_takes_no_more(
    cli: Cli, run: Run, client: SyncClient, tmp_path: Path
) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    script = f"touch {begun}; while [ ! -e {go} ]; do sleep 0.05; done; echo drained"
    with run("drained", script) as process:
        first = client.send("drained", 1)
        second = client.send("drained", 2)
        wait_until(begun.exists)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        go.touch()
        assert process.wait(20) == 0
    assert client.await_outcome(first.event_id).outcome == "ok"
    (left,) = cli.json("inbox", "drained")["messages"]
    assert (left["msg_id"], left["attempt"], left["state"]) == (second.event_id, 0, "pending")


def test_a_command_that_works_longer_than_its_lease_is_run_once(tmp_path: Path) -> None:
    home = tmp_path / "state"
    home.mkdir(mode=0o700)
    (home / "gatepost.toml").write_text("[mailbox]\ninflight_timeout_secs = 2\n")
    runs = tmp_path / "runs"
    with gateway(home) as own, SyncClient("tester", state_dir=home) as client:
        command = ("sh", "-c", f"echo run >>{runs}; sleep 5; echo done")
        with own.running("agent", "run", "slow", "--", *command):
            wait_until(lambda: "slow" in own.ok("agent", "list"))
            assert client.request("slow", "x", timeout=30) == "done"
    assert runs.read_text() == "run\n"


def test_it_goes_on_when_its_gateway_was_killed(tmp_path: Path) -> None:
    home = tmp_path / "state"
    with gateway(home) as first:
        port = json.loads((home / "endpoint.json").read_bytes())["url"].rpartition(":")[2]
        assert port
        with first.running("agent", "run", "cat", "--", "cat"):
            wait_until(lambda: "cat" in first.ok("agent", "list"))
            with SyncClient("tester", state_dir=home) as client:
                assert client.request("cat", 1) == 1
            pid = json.loads((home / "endpoint.json").read_bytes())["pid"]
            os.kill(pid, signal.SIGKILL)
            # It holds the lock of its journal until the kernel has taken it apart.
            wait_until(lambda: is_gone(pid))
            with gateway(home), SyncClient("tester", state_dir=home) as client:
                assert client.request("cat", 2, timeout=30) == 2


def test_a_script_is_an_agent_of_a_gateway_elsewhere(tmp_path: Path) -> None:
    vps = Cli(tmp_path / "vps")
    vps.ok("init", "--public", "--host", "127.0.0.1", "--node-id", "vps")
    laptop = Cli(tmp_path / "laptop")
    with gateway(vps.home, lambda cli: (cli.home / "endpoint.json").exists()):
        url = json.loads((vps.home / "endpoint.json").read_bytes())["url"]
        invite = vps.json("agent", "invite", "upper")["inviteToken"].encode()
        laptop.ok("context", "add", "vps", url, "--token-file", "-", stdin=invite)
        with laptop.running("agent", "run", "upper", "--context", "vps", "--", "tr", "a-z", "A-Z"):
            wait_until(lambda: "upper" in vps.ok("agent", "list"))
            said = vps.ok("send", "upper", "hello", "--wait", "processed", "--timeout", "20")
            assert "HELLO" in said


@pytest.mark.parametrize(
    ("command", "why"),
    [((), "name the command"), (("/nowhere/x",), "no program"), ((__file__,), "chmod +x")],
)
def test_a_command_that_cannot_run_is_refused_at_once(
    cli: Cli, command: tuple[str, ...], why: str
) -> None:
    result = cli("agent", "run", "bob", "--", *command)
    assert result.code == 2
    assert why in result.err


def test_a_token_that_is_refused_ends_it(cli: Cli, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("f00dfeed" * 8)
    url = json.loads((cli.home / "endpoint.json").read_bytes())["url"]
    where = ("--url", url, "--token-file", str(wrong))
    done = cli.in_own_process("agent", "run", "bob", *where, "--", "cat")
    assert done.code == 1
    assert "token" in done.err and "f00dfeed" not in done.err


def test_the_command_finds_the_gateway_that_its_agent_was_given() -> None:
    env = {"PATH": "/bin", "GATEPOST_URL": "http://x:1", "GATEPOST_TOKEN_FILE": "/t"}

    def given(**where: object) -> dict[str, str]:
        nothing = {"state_dir": None, "url": None, "token_file": None, "context": None}
        return handler_environment(env, **nothing | where)  # type: ignore[arg-type]

    assert given() == env
    assert given(context="vps") == {"PATH": "/bin", "GATEPOST_CONTEXT": "vps"}
    assert given(state_dir=Path("/s")) == {"PATH": "/bin", "GATEPOST_HOME": "/s"}
    assert given(url="http://y:2", token_file=Path("/u")) == {
        "PATH": "/bin",
        "GATEPOST_URL": "http://y:2",
        "GATEPOST_TOKEN_FILE": "/u",
    }
