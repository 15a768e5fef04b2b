"""Sessions of a real gateway: limits, crashes of either side, and what is left afterwards."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import psutil  # type: ignore[import-untyped]
import pytest

from gatepost.errors import StorageFailed
from gatepost.gateway.hub import session_manager
from gatepost.gateway.hub.session_manager import SessionManager
from gatepost.hub.policy import Operator
from gatepost.hub.runtimes.control_group import ControlGroup
from gatepost.hub.runtimes.process_identity import pids_with_variable
from gatepost.hub.runtimes.process_runtime import SESSION_VARIABLE
from gatepost.hub.runtimes.runtime import SessionExit, SessionHandle, SessionSpec
from gatepost.hub.sessions import session_name
from gatepost.task_wire import NewTask
from tests.gateway.hub.hub_client import HubClient
from tests.gateway.tools import opened
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def own_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubClient]:
    """A gateway that tests may kill, with room for two sessions and two tasks in the queue."""
    hub = HubClient(tmp_path_factory.mktemp("own") / "g", hub__max_sessions=2, hub__max_queued=2)
    with hub.gateway:
        yield hub


def handle_of(hub: HubClient, id: str) -> dict[str, int]:
    """How the gateway finds the session of a task again, once it has noted that."""
    name = session_name(id)
    sql = f"SELECT CAST(handle AS TEXT) -> '$.data' FROM session WHERE name = '{name}'"
    ((data,),) = wait_until(lambda: [row for row in _query(hub, sql) if row[0]], 30)
    found: dict[str, int] = json.loads(data)
    return found


def assert_ended_once(hub: HubClient, id: str, *codes: str) -> None:
    """One terminal state, a dead token, no process, no secrets."""
    task = hub.wait_for_end(id)
    assert task["error_code"] in codes, task
    hub.wait_for_session_end(id)
    assert live_tokens(hub, id) == []
    name = task["session_name"]
    wait_until(lambda: pids_with_variable(SESSION_VARIABLE, name) == [])
    assert list((hub.state_dir / "sessions" / name / "secrets").iterdir()) == []
    assert hub.task(id)["state"] == "failed"


def live_tokens(hub: HubClient, id: str) -> list[Any]:
    digits = id.replace("-", "")
    return _query(hub, f"SELECT 1 FROM task_token WHERE task = x'{digits}' AND revoked_at IS NULL")


def _query(hub: HubClient, sql: str) -> list[Any]:
    path = str(hub.state_dir / "journal.db")
    journal = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return list(journal.execute(sql))
    finally:
        journal.close()


def test_sessions_are_limited_and_the_queue_is_bounded(own_hub: HubClient) -> None:
    own_hub.define("gate", "sh", "-c", "until [ -e $HOME/../../../go ]; do sleep 0.01; done;"
                   " echo 1 > $GATEPOST_RESULT_FILE")  # fmt: skip
    first = [own_hub.create("gate") for _ in range(2)]
    for id in first:
        wait_until(lambda id=id: own_hub.task(id)["status"] == "running", 30)  # type: ignore[misc]
    waiting = [own_hub.create("gate") for _ in range(2)]
    refused = own_hub.post_task("gate")
    assert (refused.status_code, refused.json()["code"]) == (429, "task_queue_full")
    assert refused.headers["retry-after"] == "1"
    assert [own_hub.task(id)["state"] for id in waiting] == ["pending", "pending"]
    (own_hub.state_dir / "go").touch()
    assert {own_hub.wait_for_end(id)["status"] for id in first + waiting} == {"completed"}


def test_a_killed_session_fails_its_task(own_hub: HubClient) -> None:
    own_hub.define("victim", "sh", "-c", "echo up; exec sleep 1000")
    id = own_hub.create("victim")
    own_hub.wait_for_log(id, "up")
    os.kill(handle_of(own_hub, id)["child"], signal.SIGKILL)
    assert_ended_once(own_hub, id, "executor_lost")


def test_a_killed_supervisor_takes_its_session_with_it(own_hub: HubClient) -> None:
    own_hub.define("victim", "sh", "-c", "setsid sleep 1000 & echo up; sleep 1000")
    id = own_hub.create("victim")
    own_hub.wait_for_log(id, "up")
    os.kill(handle_of(own_hub, id)["pid"], signal.SIGKILL)
    assert_ended_once(own_hub, id, "executor_lost")


def test_a_session_goes_on_while_its_gateway_is_killed_and_started_again(
    own_hub: HubClient,
) -> None:
    own_hub.define("patient", "sh", "-c", "echo up; until [ -e go ]; do sleep 0.01; done;"
                   " echo '\"done\"' > $GATEPOST_RESULT_FILE; echo end")  # fmt: skip
    ended_meanwhile, goes_on = own_hub.create("patient"), own_hub.create("patient")
    for id in (ended_meanwhile, goes_on):
        own_hub.wait_for_log(id, "up")
    names = {id: own_hub.task(id)["session_name"] for id in (ended_meanwhile, goes_on)}
    for id in names:
        handle_of(own_hub, id)
    own_hub.gateway.kill9()
    sessions = own_hub.state_dir / "sessions"
    (sessions / names[ended_meanwhile] / "work" / "go").touch()
    wait_until((sessions / names[ended_meanwhile] / "exit.json").exists, 30)
    own_hub.gateway.start()
    assert own_hub.wait_for_end(ended_meanwhile)["result"] == "done"
    assert own_hub.task(goes_on)["session_state"] == "monitoring"
    (sessions / names[goes_on] / "work" / "go").touch()
    assert own_hub.wait_for_end(goes_on)["result"] == "done"
    assert "end" in own_hub.log(goes_on)


def test_when_gateway_and_session_are_killed_the_task_fails_at_the_restart(
    own_hub: HubClient,
) -> None:
    own_hub.define("victim", "sh", "-c", "echo up; exec sleep 1000")
    id = own_hub.create("victim")
    own_hub.wait_for_log(id, "up")
    pids = handle_of(own_hub, id)["pid"], handle_of(own_hub, id)["child"]
    own_hub.gateway.kill9()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    own_hub.gateway.start()
    assert_ended_once(own_hub, id, "executor_lost")


FORK_BOMB = """
import os, time
print("up", flush=True)
while True:
    try:
        os.fork()
    except OSError:
        pass
    time.sleep(0.05)
"""


def reason_against_process_limit() -> str:
    """Why this machine cannot limit the processes of a session; empty if it can."""
    group = ControlGroup("gatepost-test-limit")
    group.create(processes=10, memory=1 << 26, cpus=None)
    limited = group.limits_processes
    group.remove()
    return "" if limited or os.getuid() else "root has no limit without control groups"


@pytest.mark.skipif(
    bool(reason_against_process_limit()), reason=reason_against_process_limit() or "none"
)
def test_others_keep_working_while_a_fork_bomb_is_contained(own_hub: HubClient) -> None:
    limit = 20
    own_hub.define("bomb", sys.executable, "-c", FORK_BOMB, limits={"processes": limit})
    own_hub.define("worker", "sh", "-c", "echo 7 > $GATEPOST_RESULT_FILE")
    exploding = own_hub.create("bomb")
    own_hub.wait_for_log(exploding, "up")
    name = session_name(exploding)

    def count() -> int:
        return len(pids_with_variable(SESSION_VARIABLE, name))

    wait_until(lambda: count() >= limit // 2, 30)
    counts = []
    for _ in range(5):
        assert own_hub.wait_for_end(own_hub.create("worker"))["result"] == 7
        counts.append(count())
    assert own_hub.task(exploding)["state"] == "running", "it was contained, not ended"
    # The supervisor is in no group of its session.
    assert 0 < max(counts) <= limit + 1
    own_hub.cancel(exploding)
    own_hub.wait_for_session_end(exploding)
    wait_until(lambda: count() == 0, 30)


def test_a_session_whose_start_was_not_noted_is_ended(own_hub: HubClient) -> None:
    """The gateway dies between the launch and the note of it, which is what the handle is."""
    own_hub.define("victim", "sh", "-c", "echo up; exec sleep 1000")
    id = own_hub.create("victim")
    own_hub.wait_for_log(id, "up")
    handle_of(own_hub, id)
    own_hub.gateway.kill9()
    with apsw.Connection(str(own_hub.state_dir / "journal.db")) as journal:
        undo = "UPDATE session SET handle = NULL, state = 'claimed' WHERE ended_at IS NULL"
        journal.execute(undo)
        undo = "UPDATE task SET state = 'pending', started_at = NULL WHERE ended_at IS NULL"
        journal.execute(undo)
    own_hub.gateway.start()
    assert_ended_once(own_hub, id, "executor_lost")


def test_tasks_that_were_claimed_when_the_gateway_ended_are_launched_once(
    own_hub: HubClient,
) -> None:
    """Two sessions run and two tasks are claimed: after restarts each of the four ends once."""
    own_hub.define("patient", "sh", "-c", "echo $GATEPOST_TASK_ID >> $HOME/../../../launches;"
                   " until [ -e $HOME/../../../resume ]; do sleep 0.01; done;"
                   " echo 1 > $GATEPOST_RESULT_FILE")  # fmt: skip
    ids = [own_hub.create("patient") for _ in range(4)]
    for id in ids[:2]:
        handle_of(own_hub, id)
    digits = ", ".join(f"x'{id.replace('-', '')}'" for id in ids[2:])
    tokens = f"SELECT id FROM task_token WHERE revoked_at IS NULL AND task IN ({digits})"
    wait_until(lambda: len(_query(own_hub, tokens)) == 2, 30)
    assert {own_hub.task(id)["state"] for id in ids[2:]} == {"pending"}
    for end in (own_hub.gateway.kill9, own_hub.gateway.stop):
        end()
        former = set(_query(own_hub, tokens))
        own_hub.gateway.start()
        wait_until(lambda former=former: len(set(_query(own_hub, tokens)) - former) == 2, 30)  # type: ignore[misc]
        assert former.isdisjoint(_query(own_hub, tokens)), "they are dead"
    (own_hub.state_dir / "resume").touch()
    assert {own_hub.wait_for_end(id)["status"] for id in ids} == {"completed"}
    assert sorted((own_hub.state_dir / "launches").read_text().split()) == sorted(ids)


def test_a_claimed_task_that_is_cancelled_is_never_launched(own_hub: HubClient) -> None:
    own_hub.define("marker", "sh", "-c", "touch $HOME/../../../$GATEPOST_TASK_ID;"
                   " until [ -e $HOME/../../../finish ]; do sleep 0.01; done;"
                   " echo 1 > $GATEPOST_RESULT_FILE")  # fmt: skip
    first = [own_hub.create("marker") for _ in range(2)]
    for id in first:
        handle_of(own_hub, id)
    waiting = own_hub.create("marker")
    claim = f"SELECT 1 FROM session WHERE name = '{session_name(waiting)}'"
    wait_until(lambda: _query(own_hub, claim), 30)
    own_hub.cancel(waiting)
    wait_until(lambda: not _query(own_hub, claim), 30)
    (own_hub.state_dir / "finish").touch()
    last = own_hub.create("marker")
    assert {own_hub.wait_for_end(id)["status"] for id in (*first, last)} == {"completed"}
    assert own_hub.task(waiting)["status"] == "cancelled"
    assert not (own_hub.state_dir / waiting).exists() and live_tokens(own_hub, waiting) == []


def test_a_session_gets_its_secrets_and_nothing_of_the_gateways_environment(
    own_hub: HubClient,
) -> None:
    secrets = own_hub.state_dir / "secrets"
    secrets.mkdir(exist_ok=True)
    (secrets / "key").write_text("abc")
    own_hub.define(
        "curious", "sh", "-c", "cat $GATEPOST_SECRETS/key; echo; env | cut -d= -f1 | sort | xargs",
        secrets=["key"], environment={"COLOUR": "red"},
    )  # fmt: skip
    id = own_hub.create("curious")
    own_hub.wait_for_end(id)
    key, names = own_hub.log(id).split("\n")[:2]
    assert key == "abc" and "COLOUR" in names
    assert "GATEPOST_LISTEN__PORT" not in names and "PYTHONPATH" not in names
    own_hub.define("forgetful", "true", secrets=["none"])
    task = own_hub.wait_for_end(own_hub.create("forgetful"))
    assert task["error_code"] == "launch_failed" and "secret 'none'" in task["error"]


@pytest.mark.full
def test_many_tasks_leave_no_descriptors_processes_or_memory_behind(tmp_path: Path) -> None:
    """At most four sessions at a time, and everything is given back."""
    hub = HubClient(tmp_path / "g", hub__max_sessions=4, hub__max_queued=2000)
    with hub.gateway, hub.http() as http:
        hub.define("quick", "sh", "-c", "echo 1 > $GATEPOST_RESULT_FILE")
        process = psutil.Process(hub.gateway.pid)

        def run_all(number: int) -> int:
            body = {"description": "x", "agent_name": "quick"}
            made = [http.post("/api/hub/tasks", json=body).json() for _ in range(number)]
            most = 0
            for each in made:
                task = hub.get(f"tasks/{each['tasks'][0]['id']}", wait_secs=60)
                assert task["status"] == "completed", task
                running = hub.get("tasks", status="running")["tasks"]
                most = max(most, len(running))
            return most

        run_all(10)
        wait_until(lambda: _query(hub, "SELECT 1 FROM session WHERE ended_at IS NULL") == [])
        files, memory = process.num_fds(), process.memory_info().rss
        assert run_all(1000) <= 4
        wait_until(lambda: _query(hub, "SELECT 1 FROM session WHERE ended_at IS NULL") == [])
        assert process.num_fds() <= files + 5
        assert process.memory_info().rss < memory + 64 * 1024 * 1024
        assert _query(hub, "SELECT 1 FROM task_token WHERE revoked_at IS NULL") == []
        # The spawner stays, and up to four supervisors that wait for other sessions.
        wait_until(lambda: len(process.children(recursive=True)) <= 5, 30)


class BriefRuntime:
    """A runtime whose sessions end at once, with a result that is kept as a blob."""

    def folder_inside(self, folder: Path) -> str:
        return str(folder)

    socket_inside = folder_inside

    async def launch(self, spec: SessionSpec, report: object) -> SessionHandle:
        (spec.folder / "work").mkdir(parents=True)
        (spec.folder / "work" / "result.json").write_text(json.dumps("x" * 100_000))
        return SessionHandle(spec.name, {})

    async def wait(self, handle: SessionHandle) -> SessionExit:
        return SessionExit("exited", 0)

    async def remove_orphans(self, known: object) -> list[str]:
        return []

    async def close(self) -> None: ...


def refuse_twice(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, error: Exception
) -> None:
    """Let two calls of a method fail, and all after them succeed."""
    working, failures = getattr(owner, name), [error, error]

    def call(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return working(*arguments)

    monkeypatch.setattr(owner, name, call)


@pytest.mark.anyio
async def test_the_end_of_a_session_is_noted_once_the_disk_has_space_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_manager, "_RETRY_SECS", 0.001)
    async with opened(tmp_path / "g") as operations:
        core = operations.core
        core.registry.load_files({"brief.json": b'{"name": "brief", "command": ["true"]}'})
        core.agents.hub_run = frozenset({"brief"})
        runtime: Any = BriefRuntime()
        manager = SessionManager(core, {"process": runtime}, {})
        operations.tasks.watchers.listeners.append(manager.task_changed)
        refuse_twice(monkeypatch, core, "keep_payload", OSError("no space left"))
        refuse_twice(monkeypatch, core.tasks.session_tasks, "note_ended", StorageFailed("full"))
        await core.commit(lambda tx: core.agents.register(tx, "brief", "internal"))
        async with manager.running():
            new = NewTask("al", "be brief", ["brief"])
            (task,) = await operations.tasks.create_tasks(new, Operator())
            ended = await operations.tasks.show_task(task.id, 30)
        assert ended.state == "completed"
        assert manager.session_count == 0
