"""Sessions of a real gateway: limits, crashes of either side, and what is left afterwards."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import apsw
import psutil  # type: ignore[import-untyped]
import pytest

from gatepost.errors import Revoked, StorageFailed
from gatepost.tasks.policy import Operator
from gatepost.tasks.runtimes.process_identity import pids_with_variable
from gatepost.tasks.runtimes.process_runtime import SESSION_VARIABLE
from gatepost.tasks.service import session_manager
from gatepost.tasks.service.hub_auth import HubAuth
from gatepost.tasks.session_runtime import SessionHandle, SessionSpec
from gatepost.tasks.sessions import open_sessions, session_name
from gatepost.tasks.task_tokens import list_task_tokens
from gatepost.wire.tasks import NewTask
from tests.tasks.service.brief_sessions import BriefRuntime, brief_sessions, run_brief_task
from tests.tasks.service.hub_client import HubClient
from tests.waiting import async_wait_until, wait_until


@pytest.fixture(scope="module")
def own_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubClient]:
    """A gateway that tests may kill, with room for two sessions and two tasks in the queue."""
    hub = HubClient(tmp_path_factory.mktemp("own") / "g", hub__max_sessions=2, hub__max_queued=2)
    with hub.gateway:
        yield hub


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that sessions can reach and write to, whichever user they have."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        yield Path(name)


def handle_of(hub: HubClient, id: str) -> dict[str, int]:
    """How the gateway finds the session of a task again, once it has noted that."""
    name = session_name(id)
    sql = f"SELECT CAST(handle AS TEXT) -> '$.data' FROM session WHERE name = '{name}'"
    ((data,),) = wait_until(lambda: [row for row in _query(hub, sql) if row[0]])
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


def test_sessions_are_limited_and_the_queue_is_bounded(own_hub: HubClient, shared: Path) -> None:
    own_hub.define("gate", "sh", "-c", f"until [ -e {shared}/go ]; do sleep 0.01; done;"
                   " echo 1 > $GATEPOST_RESULT_FILE")  # fmt: skip
    first = [own_hub.create("gate") for _ in range(2)]
    for id in first:
        wait_until(lambda id=id: own_hub.task(id)["status"] == "running")  # type: ignore[misc]
    waiting = [own_hub.create("gate") for _ in range(2)]
    refused = own_hub.post_task("gate")
    assert (refused.status_code, refused.json()["code"]) == (429, "task_queue_full")
    assert refused.headers["retry-after"] == "1"
    assert [own_hub.task(id)["state"] for id in waiting] == ["pending", "pending"]
    (shared / "go").touch()
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
    wait_until((sessions / names[ended_meanwhile] / "exit.json").exists)
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


def publish(hub: HubClient, id: str, owner: str, **fields: Any) -> None:
    skill = {"ref": "skills/x", "version": "1"}
    body = {
        "capability_id": id, "name": id, "version": "1", "owner_agent_id": owner,
        "delegation_skill": skill, "executor_skill": skill, "default_eta_seconds": 600,
        "contract": {"output": {"type": "object", "required": ["verdict"]}},
    }  # fmt: skip
    with hub.http() as http:
        http.put(f"/v1/capabilities/{id}", json=body | fields).raise_for_status()


def create_for(hub: HubClient, capability: str) -> str:
    body = {"description": "do it", "required_capabilities": [capability]}
    with hub.http() as http:
        answer = http.post("/api/hub/tasks", json=body).raise_for_status()
    id: str = answer.json()["tasks"][0]["id"]
    return id


@pytest.mark.parametrize("result", ['{"other": 1}', '{"verdict": 1}'])
def test_a_result_that_came_while_the_gateway_was_dead_is_judged_by_its_contract(
    own_hub: HubClient, result: str
) -> None:
    script = f"echo up; until [ -e go ]; do sleep 0.01; done; echo '{result}'"
    own_hub.define("late", "sh", "-c", f"{script} > $GATEPOST_RESULT_FILE")
    publish(own_hub, "lateness", "late")
    ids = [create_for(own_hub, "lateness") for _ in range(2)]
    for id in ids:
        own_hub.wait_for_log(id, "up")
        handle_of(own_hub, id)
    own_hub.gateway.kill9()
    for id in ids:
        folder = own_hub.state_dir / "sessions" / session_name(id)
        (folder / "work" / "go").touch()
        wait_until((folder / "exit.json").exists)
    own_hub.gateway.start()
    state = "completed" if "verdict" in result else "failed"
    for id in ids:
        ended = own_hub.wait_for_end(id)
        assert (ended["state"], live_tokens(own_hub, id)) == (state, []), ended
        assert state == "completed" or ended["error_code"] == "contract_mismatch"


def test_a_session_that_was_lost_with_its_gateway_is_tried_as_often_as_its_capability_says(
    own_hub: HubClient,
) -> None:
    own_hub.define(
        "fragile", "sh", "-c",
        "case $PWD in"
        " *r3/work) echo '{\"verdict\": 1}' > $GATEPOST_RESULT_FILE;;"
        " *) exec sleep 1000;; esac",
    )  # fmt: skip
    publish(own_hub, "fragility", "fragile", max_attempts=3)
    id = create_for(own_hub, "fragility")
    for attempt in (1, 2):
        name = session_name(id, attempt)
        log = own_hub.state_dir / "sessions" / name
        wait_until(lambda log=log: (log / "status.json").exists())  # type: ignore[misc]
        sql = f"SELECT CAST(handle AS TEXT) -> '$.data' FROM session WHERE name = '{name}'"
        rows = wait_until(lambda sql=sql: [r for r in _query(own_hub, sql) if r[0]])  # type: ignore[misc]
        handle = json.loads(rows[0][0])
        own_hub.gateway.kill9()
        for pid in (handle["pid"], handle["child"]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        own_hub.gateway.start()
    ended = own_hub.wait_for_end(id)
    assert (ended["state"], ended["attempt"]) == ("completed", 3), ended


def test_a_gateway_starts_although_the_agent_of_a_lost_session_is_gone(
    own_hub: HubClient,
) -> None:
    own_hub.define("leaver", "sh", "-c", "echo up; exec sleep 1000")
    publish(own_hub, "leaving", "leaver", max_attempts=3)
    id = create_for(own_hub, "leaving")
    own_hub.wait_for_log(id, "up")
    handle = handle_of(own_hub, id)
    own_hub.gateway.kill9()
    (own_hub.state_dir / "agents" / "leaver.json").unlink()
    for pid in (handle["pid"], handle["child"]):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    own_hub.gateway.start()
    ended = own_hub.wait_for_end(id)
    assert (ended["state"], ended["error_code"]) == ("failed", "executor_lost"), ended
    assert live_tokens(own_hub, id) == []


def test_others_keep_working_while_a_fork_bomb_is_contained(own_hub: HubClient) -> None:
    limit = 20
    own_hub.define("bomb", sys.executable, "-c", FORK_BOMB, limits={"processes": limit})
    own_hub.define("worker", "sh", "-c", "echo 7 > $GATEPOST_RESULT_FILE")
    exploding = own_hub.create("bomb")
    own_hub.wait_for_log(exploding, "up")
    name = session_name(exploding)

    def count() -> int:
        return len(pids_with_variable(SESSION_VARIABLE, name))

    try:
        wait_until(lambda: count() >= limit // 2)
        counts = []
        for _ in range(5):
            assert own_hub.wait_for_end(own_hub.create("worker"))["result"] == 7
            counts.append(count())
        assert own_hub.task(exploding)["state"] == "running", "it was contained, not ended"
        # The supervisor is in no group of its session.
        assert 0 < max(counts) <= limit + 1
    finally:
        # Whatever fails above, the tests that follow need its place.
        own_hub.cancel(exploding)
        own_hub.wait_for_session_end(exploding)
    wait_until(lambda: count() == 0)


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
    own_hub: HubClient, shared: Path
) -> None:
    """Two sessions run and two tasks are claimed: after restarts each of the four ends once."""
    own_hub.define("patient", "sh", "-c", f"touch {shared}/$GATEPOST_TASK_ID.$$;"
                   f" until [ -e {shared}/resume ]; do sleep 0.01; done;"
                   " echo 1 > $GATEPOST_RESULT_FILE")  # fmt: skip
    ids = [own_hub.create("patient") for _ in range(4)]
    for id in ids[:2]:
        handle_of(own_hub, id)
    digits = ", ".join(f"x'{id.replace('-', '')}'" for id in ids[2:])
    tokens = f"SELECT id FROM task_token WHERE revoked_at IS NULL AND task IN ({digits})"
    wait_until(lambda: len(_query(own_hub, tokens)) == 2)
    assert {own_hub.task(id)["state"] for id in ids[2:]} == {"pending"}
    for end in (own_hub.gateway.kill9, own_hub.gateway.stop):
        end()
        former = set(_query(own_hub, tokens))
        own_hub.gateway.start()
        wait_until(lambda former=former: len(set(_query(own_hub, tokens)) - former) == 2)  # type: ignore[misc]
        assert former.isdisjoint(_query(own_hub, tokens)), "they are dead"
    (shared / "resume").touch()
    assert {own_hub.wait_for_end(id)["status"] for id in ids} == {"completed"}
    assert sorted(each.stem for each in shared.glob("*-*")) == sorted(ids)


def test_a_claimed_task_that_is_cancelled_is_never_launched(
    own_hub: HubClient, shared: Path
) -> None:
    own_hub.define("marker", "sh", "-c", f"touch {shared}/$GATEPOST_TASK_ID;"
                   f" until [ -e {shared}/finish ]; do sleep 0.01; done;"
                   " echo 1 > $GATEPOST_RESULT_FILE")  # fmt: skip
    first = [own_hub.create("marker") for _ in range(2)]
    for id in first:
        handle_of(own_hub, id)
    waiting = own_hub.create("marker")
    claim = f"SELECT 1 FROM session WHERE name = '{session_name(waiting)}'"
    wait_until(lambda: _query(own_hub, claim))
    own_hub.cancel(waiting)
    wait_until(lambda: not _query(own_hub, claim))
    (shared / "finish").touch()
    last = own_hub.create("marker")
    assert {own_hub.wait_for_end(id)["status"] for id in (*first, last)} == {"completed"}
    assert own_hub.task(waiting)["status"] == "cancelled"
    assert not (shared / waiting).exists() and live_tokens(own_hub, waiting) == []


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
                task = hub.get(f"tasks/{each['id']}", wait_secs=60)
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
        wait_until(lambda: len(process.children(recursive=True)) <= 5)


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


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed is tried again at once."""
    monkeypatch.setattr(session_manager, "_RETRY_SECS", 0.001)


@pytest.mark.anyio
@pytest.mark.usefixtures("hasty")
async def test_the_end_of_a_session_is_noted_once_the_disk_has_space_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brief_sessions(tmp_path / "g", BriefRuntime()) as (operations, manager):
        core = operations.core
        refuse_twice(monkeypatch, core, "keep_payload", OSError("no space left"))
        refuse_twice(monkeypatch, core.tasks.session_tasks, "settle_task", StorageFailed("full"))
        refuse_twice(monkeypatch, core.tasks.session_tasks, "record_end", StorageFailed("full"))
        assert (await run_brief_task(operations, manager)).state == "completed"


@pytest.mark.anyio
@pytest.mark.usefixtures("hasty")
async def test_a_token_is_dead_with_its_session_while_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, bearers = BriefRuntime(b"1"), []
    launch = runtime.launch

    async def remember(spec: SessionSpec, report: object) -> SessionHandle:
        bearers.append(spec.secrets["token"].decode())
        return await launch(spec, report)

    monkeypatch.setattr(runtime, "launch", remember)
    async with brief_sessions(tmp_path / "g", runtime) as (operations, manager):
        core, is_full = operations.core, True
        records = core.tasks.session_tasks

        def refuse(honest: Any, *given: Any) -> Any:
            if is_full:
                raise StorageFailed("the disk is full")
            return honest(*given)

        for name in ("record_end", "settle_task"):
            monkeypatch.setattr(records, name, partial(refuse, getattr(records, name)))
        (task,) = await operations.tasks.create_tasks(NewTask("al", "go", ["brief"]), Operator())
        await async_wait_until(lambda: task.id in manager.unrecorded_ends)
        assert await core.read(list_task_tokens), "the journal does not know of the end"
        auth = HubAuth(core, cast(Any, None), manager.unrecorded_ends)
        headers = {"authorization": f"Bearer {bearers[0]}"}
        connection: Any = SimpleNamespace(headers=headers, scope={})
        with pytest.raises(Revoked, match="the session of this token has ended"):
            await auth.authenticate(connection)
        is_full = False
        assert (await operations.tasks.show_task(task.id, 30)).state == "completed"
        await async_wait_until(lambda: not manager.unrecorded_ends)
        assert await core.read(list_task_tokens) == []


@pytest.mark.anyio
@pytest.mark.parametrize("depth", [300, 30_000, 400_000])
async def test_a_result_that_is_nested_too_deeply_fails_its_task(
    tmp_path: Path, depth: int
) -> None:
    runtime = BriefRuntime(b"[" * depth + b"]" * depth)
    async with brief_sessions(tmp_path / "g", runtime) as (operations, manager):
        ended = await run_brief_task(operations, manager)
        assert (ended.state, ended.error_code) == ("failed", "invalid_request")


@pytest.mark.anyio
@pytest.mark.parametrize("error", [RecursionError(), ValueError("odd"), KeyError("x")])
@pytest.mark.parametrize("is_read", [True, False])
async def test_whatever_goes_wrong_with_a_result_fails_its_task_and_its_token_is_dead_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, is_read: bool
) -> None:
    async with brief_sessions(tmp_path / "g", BriefRuntime(b"1")) as (operations, manager):
        seen: list[int] = []

        def judge(*arguments: Any, **more: Any) -> Any:
            seen.append(1)
            raise error

        if is_read:
            monkeypatch.setattr(manager.contents, "read_result", judge)
        else:
            monkeypatch.setattr(operations.core.tasks.executed, "complete_task", judge)
        ended = await run_brief_task(operations, manager)
        assert (ended.state, ended.error_code) == ("failed", "invalid_request")
        assert ended.error and ended.error.startswith("its result cannot be judged")
        assert seen


@pytest.mark.anyio
@pytest.mark.usefixtures("hasty")
async def test_the_end_is_on_record_while_the_result_waits_for_its_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brief_sessions(tmp_path / "g", BriefRuntime(b"1")) as (operations, manager):
        judging, verdict = asyncio.Event(), asyncio.Event()
        read = manager.contents.read_result

        async def read_later(name: str, task_id: str) -> Any:
            judging.set()
            await verdict.wait()
            return await read(name, task_id)

        monkeypatch.setattr(manager.contents, "read_result", read_later)
        new = NewTask("al", "go", ["brief"])
        (task,) = await operations.tasks.create_tasks(new, Operator())
        await judging.wait()
        await operations.core.commit(lambda tx: None)  # What was submitted before is on disk.
        assert await operations.core.read(list_task_tokens) == []
        assert manager.session_count == 0
        (session,) = await operations.core.read(open_sessions)
        assert session.state == "recycling"
        verdict.set()
        assert (await operations.tasks.show_task(task.id, 30)).state == "completed"


@pytest.mark.anyio
async def test_a_session_that_was_not_judged_before_a_restart_is_judged_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "g"
    async with brief_sessions(state, BriefRuntime(b'"done"')) as (operations, manager):

        async def never(name: str, task_id: str) -> Any:
            judging.set()
            await asyncio.Event().wait()

        judging = asyncio.Event()
        monkeypatch.setattr(manager.contents, "read_result", never)
        new = NewTask("al", "go", ["brief"])
        (task,) = await operations.tasks.create_tasks(new, Operator())
        await judging.wait()
        await operations.core.commit(lambda tx: None)
    async with brief_sessions(state, BriefRuntime()) as (operations, manager):
        ended = await operations.tasks.show_task(task.id, 30)
        assert (ended.state, bytes(ended.result or b"")) == ("completed", b'"done"')


@pytest.mark.anyio
async def test_any_error_at_a_launch_refuses_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brief_sessions(tmp_path / "g", BriefRuntime()) as (operations, manager):

        def fail(*arguments: Any) -> Any:
            raise RecursionError

        monkeypatch.setattr(manager.contents, "describe_session", fail)
        ended = await run_brief_task(operations, manager)
        assert (ended.state, ended.error_code) == ("failed", "launch_failed")


@pytest.mark.anyio
@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(("failures", "state"), [(3, "completed"), (100, "failed")])
async def test_a_session_that_cannot_be_watched_is_watched_again_and_then_killed(
    tmp_path: Path, failures: int, state: str
) -> None:
    runtime = BriefRuntime(b"1")
    runtime.failures = [OSError("too many open files")] * failures
    async with brief_sessions(tmp_path / "g", runtime) as (operations, manager):
        ended = await run_brief_task(operations, manager)
        assert ended.state == state
        assert ended.error_code == (None if state == "completed" else "executor_lost")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("is_known", "end"), [(True, ("completed", None)), (False, ("failed", "executor_lost"))]
)
async def test_the_sweep_takes_up_sessions_that_nothing_follows_and_ends_tasks_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_known: bool, end: tuple[str, str | None]
) -> None:
    async with brief_sessions(tmp_path / "g", BriefRuntime(b"1")) as (operations, manager):
        broken = asyncio.Event()

        def break_off(*arguments: Any) -> Any:
            broken.set()
            raise RuntimeError("a defect")

        with monkeypatch.context() as defect:
            defect.setattr(manager, "_watch", break_off)
            new = NewTask("al", "go", ["brief"])
            (task,) = await operations.tasks.create_tasks(new, Operator())
            await broken.wait()
            await operations.core.commit(lambda tx: None)  # Its start is on disk.
            await async_wait_until(lambda: not manager.session_count)
            assert (await operations.tasks.show_task(task.id, 0)).state == "running"
        if not is_known:
            await operations.core.commit(lambda tx: tx.execute("DELETE FROM session"))
        monkeypatch.setattr(session_manager, "_LOOK_SECS", 0.01)
        manager.look_for_tasks()
        ended = await operations.tasks.show_task(task.id, 60)
        assert (ended.state, ended.error_code) == end
        assert await operations.core.read(list_task_tokens) == []
