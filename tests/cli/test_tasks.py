"""`gatepost task`, on a real gateway that runs agents."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from gatepost.cli.commands.tasks import _create_task
from gatepost.cli.options import DEFAULT_OUTPUT
from gatepost.cli.task_progress import TaskProgress, describe_progress
from gatepost.clock import SystemClock
from gatepost.events import new_event_id
from gatepost.wire.tasks import NewTask, TaskView
from tests.cli.conftest import Cli
from tests.waiting import wait_until


def define(cli: Cli, name: str, script: str) -> None:
    file = cli.home / "agents" / f"{name}.json"
    definition = {"name": name, "command": ["sh", "-c", script], "eta_seconds": 60}
    file.write_text(json.dumps(definition))
    wait_until(lambda: name in [each["id"] for each in cli.call("GET", "/agents")])


@pytest.fixture
def copier(cli: Cli) -> str:
    define(cli, "copier", "echo working; cp $GATEPOST_TASK_FILE $GATEPOST_RESULT_FILE")
    return "copier"


def test_create_with_wait_prints_the_result(cli: Cli, copier: str) -> None:
    said = cli.ok("task", "create", copier, "copy it", "--input", '{"n": 1}', "--wait")
    assert json.loads(said) == {"description": "copy it", "input": {"n": 1}}


def test_create_list_show_logs_and_await(cli: Cli, copier: str, tmp_path: Path) -> None:
    big = tmp_path / "input.json"
    big.write_text(json.dumps("x" * 100_000))
    id, status = cli.ok("task", "create", copier, "copy it", "--input-file", str(big)).split()
    assert status == "pending"
    assert len(cli.json("task", "await", id)["result"]["input"]) == 100_000
    assert id in cli.ok("task", "list", "--agent", copier, "--status", "completed")
    shown = cli.ok("task", "show", id)
    assert shown.startswith(f"{id} for copier, completed") and "requested by: cli" in shown
    assert "  ETA: 20" in shown
    assert cli.ok("task", "logs", id) == "working\n"
    assert cli.ok("task", "logs", id, "-f") == "working\n"
    assert cli.ok("task", "logs", id, "--tail", "3") == "ng\n"


def test_a_task_that_fails_ends_with_1_and_says_why(cli: Cli) -> None:
    define(cli, "failing", "echo no >&2; exit 5")
    result = cli("task", "create", "failing", "do it", "--wait")
    assert result.code == 1
    assert "failed (session_failed): it exited with 5: no" in result.out


def test_cancel_ends_a_task_once(cli: Cli) -> None:
    define(cli, "endless", "exec sleep 1000")
    id = cli.ok("task", "create", "endless", "wait").split()[0]
    late = cli("task", "await", id, "--timeout", "0.05")
    assert late.code == 1 and "has not ended after 0.05 s" in late.err
    assert cli.ok("task", "cancel", id) == f"{id} cancelled\n"
    again = cli("--json", "task", "cancel", id)
    assert (again.code, again.error["code"]) == (1, "wrong_state")


def test_cancel_waits_for_the_end_of_the_session_and_tells_its_states(cli: Cli) -> None:
    define(cli, "slow", "trap 'sleep 2; exit' TERM; echo begun; while :; do sleep 0.1; done")
    id = cli.ok("task", "create", "slow", "wait").split()[0]
    wait_until(lambda: cli.ok("task", "logs", id) == "begun\n")
    late = cli("task", "cancel", id, "--wait", "--timeout", "0")
    assert late.code == 1 and f"has not ended after 0 s: `gatepost task show {id}`" in late.err
    ended = cli("task", "logs", id, "-f", "--tail", "1")
    assert ended.code == 0 and "gatepost: the session is recycled" in ended.err
    other = cli.ok("task", "create", "slow", "wait").split()[0]
    wait_until(lambda: cli.ok("task", "logs", other) == "begun\n")
    cancelled = cli("task", "cancel", other, "--wait")
    assert (cancelled.code, cancelled.out) == (0, f"{other} cancelled\n")
    (session,) = [
        each for each in cli.json("task", "sessions")["sessions"] if each["task_id"] == other
    ]
    assert session["state"] == "recycled"


def test_a_task_whose_creation_is_interrupted_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    class _Interrupted:
        agent = None

        def post(self, *_: object) -> None:
            raise KeyboardInterrupt

    gateway: Any = _Interrupted()
    id = new_event_id(SystemClock())
    with pytest.raises(KeyboardInterrupt):
        _create_task(gateway, NewTask("cli", "copy it", ["copier"], task_id=id))
    advice = f"the task may exist already: `gatepost task show {id}`"
    assert advice in capsys.readouterr().err


@pytest.mark.parametrize("command", ["create", "await"])
def test_an_interrupted_wait_for_a_task_names_it(cli: Cli, command: str) -> None:
    define(cli, "endless", "exec sleep 1000")
    asked: tuple[str, ...] = ("create", "endless", "wait", "--wait")
    if command == "await":
        asked = ("await", cli.ok("task", "create", "endless", "wait").split()[0])
    with cli.on_terminal("task", *asked, columns=200) as terminal:
        terminal.read("endless")
        terminal.process.send_signal(signal.SIGINT)
        said = terminal.read()
        assert terminal.process.wait(20) == 130
    id = cli.json("task", "list")["tasks"][0]["id"]
    assert f"the task goes on: `gatepost task await {id}` waits for its end" in said
    cli.ok("task", "cancel", id)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("task", "create", "nobody", "x"), "invalid_targets"),
        (("task", "create", "--capability", "fly", "x"), "no_route"),
        (("task", "create", "only-one-argument"), "usage"),
        (("task", "create", "nobody", "x", "--input", "{"), "usage"),
        (("task", "show", "01a1e43d-9d8d-718e-9067-c0d71feb1aaf"), "unknown_task"),
    ],
)
def test_mistakes_are_named(cli: Cli, arguments: tuple[str, ...], code: str) -> None:
    result = cli("--json", *arguments)
    assert result.code != 0 and result.error["code"] == code


def test_progress_in_a_few_words() -> None:
    task = TaskView("1", "bob", "running", "running", "al", eta_at=90_000, note="half\x1b[2J")
    assert describe_progress(task, 30) == "bob running, ETA 1 min, half\\x1b[2J"
    assert describe_progress(task, 100) == "bob running, late, half\\x1b[2J"
    ended = TaskView("1", "bob", "completed", "completed", "al", eta_at=90_000, ended_at=80_000)
    assert describe_progress(ended, 80) == "bob completed"


def test_the_time_that_is_left_passes_while_nothing_happens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = TaskView("1", "bob", "running", "running", "al", eta_at=90_000)
    shown = TaskProgress(task, DEFAULT_OUTPUT)
    monkeypatch.setattr("time.time", lambda: 30.0)
    assert shown.__rich__().plain == "bob running, ETA 1 min"
    monkeypatch.setattr("time.time", lambda: 88.0)
    assert shown.__rich__().plain == "bob running, ETA 2 s"
