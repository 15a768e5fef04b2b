"""Real processes: sessions that end well, badly, never, and not by themselves."""

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from gatepost.errors import LaunchFailed
from gatepost.tasks.agent_definition import AgentDefinition, SessionLimits
from gatepost.tasks.runtimes.bubblewrap import find_bubblewrap
from gatepost.tasks.runtimes.control_group import ControlGroup
from gatepost.tasks.runtimes.process_identity import pids_with_variable, start_time
from gatepost.tasks.runtimes.process_runtime import (
    SESSION_VARIABLE,
    ProcessRuntime,
    SandboxChoice,
)
from gatepost.tasks.runtimes.session_user import find_any_user, is_root
from gatepost.tasks.session_runtime import SessionHandle, SessionSpec
from gatepost.tasks.session_states import SessionInput
from tests.waiting import async_wait_until, wait_until

ENVIRONMENT = {"PATH": os.environ["PATH"]}
TIMEOUT = 30


needs_bubblewrap = pytest.mark.skipif(
    find_bubblewrap(find_any_user()) is None,
    reason="bubblewrap is not installed or makes no sandbox here",
)


class Sessions:
    """One process runtime in a folder of its own."""

    def __init__(self, root: Path, sandbox: SandboxChoice = "none") -> None:
        self.root = root
        self.runtime = ProcessRuntime(root, sandbox)
        self.steps: list[SessionInput] = []
        self.count = 0

    def spec(self, *command: str, grace: float = 10.0, **fields: object) -> SessionSpec:
        self.count += 1
        name = f"s{os.getpid()}-{id(self):x}-{self.count}"
        limits = {"memory_mb": 512, "processes": 64, **fields.pop("limits", {})}  # type: ignore[dict-item]
        definition = AgentDefinition(
            name="a",
            command=command,
            limits=SessionLimits(**limits),
            **fields,  # type: ignore[arg-type]
        )
        return SessionSpec(
            name=name,
            folder=self.root / name,
            definition=definition,
            environment=ENVIRONMENT,
            files={"task.json": b'{"x":1}'},
            secrets={"token": b"secret"},
            hidden=(self.root.parent,),
            log_bytes=64 * 1024,
            stop_grace=grace,
        )

    async def launch(self, *command: str, **fields: object) -> SessionHandle:
        spec = self.spec(*command, **fields)  # type: ignore[arg-type]
        return await self.runtime.launch(spec, self.steps.append)

    def log(self, handle: SessionHandle) -> str:
        return self.runtime.read_log(handle.name, 0, 1_000_000).data.decode()

    async def wait_for_log(self, handle: SessionHandle, text: str) -> None:
        await async_wait_until(lambda: text in self.log(handle), TIMEOUT)


def run(test: Callable[[Sessions], Awaitable[None]], root: Path, **options: SandboxChoice) -> None:
    async def body() -> None:
        sessions = Sessions(root / "sessions", **options)
        try:
            await asyncio.wait_for(test(sessions), 60)
        finally:
            await sessions.runtime.remove_orphans(())
            await sessions.runtime.close()

    asyncio.run(body())


def test_a_session_runs_and_its_end_and_its_log_are_known(tmp_path: Path) -> None:
    async def body(sessions: Sessions) -> None:
        handle = await sessions.launch("sh", "-c", "echo hello; echo oops >&2; exit 3")
        ended = await sessions.runtime.wait(handle)
        assert (ended.reason, ended.code, ended.is_success) == ("exited", 3, False)
        assert sessions.log(handle) == "hello\noops\n"
        assert sessions.steps == list(SessionInput)[:4]

    run(body, tmp_path)


def test_the_environment_is_the_given_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIDDEN_SECRET", "1")

    async def body(sessions: Sessions) -> None:
        handle = await sessions.launch("/usr/bin/env")
        await sessions.runtime.wait(handle)
        names = {line.partition("=")[0] for line in sessions.log(handle).splitlines()}
        assert names == {"PATH", SESSION_VARIABLE}

    run(body, tmp_path)


def test_secrets_are_private_files_that_go_with_the_session(tmp_path: Path) -> None:
    async def body(sessions: Sessions) -> None:
        script = "cat ../secrets/token ../task.json; stat -c ' %a' ../secrets/token ../secrets"
        script += "; mkdir -p ../secrets/0/1"
        handle = await sessions.launch("sh", "-c", script)
        await sessions.runtime.wait(handle)
        assert sessions.log(handle) == 'secret{"x":1} 600\n 700\n'
        assert list((sessions.root / handle.name / "secrets").iterdir()) == []

    run(body, tmp_path)


@pytest.mark.parametrize("command", [("/no/such/command",), ("/etc/passwd",)])
def test_a_command_that_cannot_be_executed_leaves_nothing(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    async def body(sessions: Sessions) -> None:
        spec = sessions.spec(*command)
        with pytest.raises(LaunchFailed, match="cannot be started"):
            await sessions.runtime.launch(spec, sessions.steps.append)
        assert list((spec.folder / "secrets").iterdir()) == []
        assert sessions.steps[-1] is SessionInput.START

    run(body, tmp_path)


def test_a_link_in_place_of_the_secrets_costs_nobody_a_file(tmp_path: Path) -> None:
    kept = tmp_path / "kept" / "folder"
    kept.mkdir(parents=True)
    (tmp_path / "kept" / "file").touch()

    async def body(sessions: Sessions) -> None:
        script = f"rm -r ../secrets; ln -s {tmp_path}/kept ../secrets; exit 0"
        handle = await sessions.launch("sh", "-c", script)
        assert (await sessions.runtime.wait(handle)).is_success
        # The folder of a session of another user belongs to the gateway.
        assert (sessions.root / handle.name / "secrets").is_symlink() == (not is_root())

    run(body, tmp_path)
    assert kept.is_dir() and (tmp_path / "kept" / "file").exists()


@pytest.mark.parametrize("sandbox", ["none", pytest.param("auto", marks=needs_bubblewrap)])
def test_stop_lets_a_session_end_in_its_own_way(tmp_path: Path, sandbox: SandboxChoice) -> None:
    async def body(sessions: Sessions) -> None:
        script = "trap 'sleep 0.3; echo bye; exit 7' TERM; echo up; while :; do sleep 0.01; done"
        handle = await sessions.launch("sh", "-c", script)
        await sessions.wait_for_log(handle, "up")
        await sessions.runtime.stop(handle)
        ended = await sessions.runtime.wait(handle)
        assert (ended.reason, ended.code) == ("stopped", 7)
        assert "bye" in sessions.log(handle)

    run(body, tmp_path, sandbox=sandbox)


def test_a_session_that_ignores_sigterm_is_killed_with_all_its_processes(tmp_path: Path) -> None:
    async def body(sessions: Sessions) -> None:
        script = "trap '' TERM; setsid sleep 1000 & sleep 1000 & echo up; wait; sleep 1000"
        handle = await sessions.launch("sh", "-c", script, grace=0.1)
        await sessions.wait_for_log(handle, "up")
        await sessions.runtime.stop(handle)
        ended = await sessions.runtime.wait(handle)
        assert (ended.reason, ended.code) == ("stopped", -signal.SIGKILL)
        assert pids_with_variable(SESSION_VARIABLE, handle.name) == []

    run(body, tmp_path)


def test_processes_that_outlive_the_command_are_ended(tmp_path: Path) -> None:
    async def body(sessions: Sessions) -> None:
        script = "setsid sh -c 'sleep 1000 & sleep 1000' & sleep 0.05; exit 0"
        handle = await sessions.launch("sh", "-c", script)
        assert (await sessions.runtime.wait(handle)).is_success
        assert pids_with_variable(SESSION_VARIABLE, handle.name) == []

    run(body, tmp_path)


def test_a_session_is_ended_at_its_time_limit(tmp_path: Path) -> None:
    async def body(sessions: Sessions) -> None:
        handle = await sessions.launch("sleep", "1000", limits={"seconds": 0.1})
        assert (await sessions.runtime.wait(handle)).reason == "time_limit"

    run(body, tmp_path)


def test_a_flood_of_output_is_bounded_and_can_be_stopped(tmp_path: Path) -> None:
    async def body(sessions: Sessions) -> None:
        handle = await sessions.launch("sh", "-c", "trap '' TERM; yes", grace=0.1)
        await async_wait_until(
            lambda: sessions.runtime.read_log(handle.name, 0, 1).offset > 1_000_000, TIMEOUT
        )
        await sessions.runtime.stop(handle)
        assert (await sessions.runtime.wait(handle)).reason == "stopped"
        parts = [path.stat().st_size for path in (sessions.root / handle.name).glob("log.*")]
        assert sum(parts) <= 64 * 1024

    run(body, tmp_path)


def test_a_fork_bomb_stays_within_its_limit_and_is_ended(tmp_path: Path) -> None:
    async def body(sessions: Sessions) -> None:
        bomb = "b() { b | b & sleep 0.02; }; echo up; b; sleep 1000"
        handle = await sessions.launch("sh", "-c", bomb, limits={"processes": 20}, grace=0.1)
        await sessions.wait_for_log(handle, "up")
        await sessions.runtime.stop(handle)
        await sessions.runtime.wait(handle)
        assert pids_with_variable(SESSION_VARIABLE, handle.name) == []

    run(body, tmp_path)


def test_a_session_yields_the_processor_and_has_its_limit_twice(tmp_path: Path) -> None:
    """A user of its own has the limit of processes too, in case that the control group fails."""

    async def body(sessions: Sessions) -> None:
        handle = await sessions.launch("bash", "-c", "nice; ulimit -u", limits={"processes": 20})
        await sessions.runtime.wait(handle)
        niceness, processes = map(int, sessions.log(handle).split())
        assert niceness > os.nice(0)
        assert processes == 20 or not is_root()

    run(body, tmp_path)


def test_memory_is_limited(tmp_path: Path) -> None:
    async def body(sessions: Sessions) -> None:
        code = "x = bytearray(300_000_000); print(len(x))"
        handle = await sessions.launch(sys.executable, "-c", code, limits={"memory_mb": 100})
        assert not (await sessions.runtime.wait(handle)).is_success
        assert "300000000" not in sessions.log(handle)

    run(body, tmp_path)


def test_a_killed_session_is_a_signal_and_a_killed_supervisor_is_a_loss(tmp_path: Path) -> None:
    async def body(sessions: Sessions) -> None:
        handle = await sessions.launch("sleep", "1000")
        os.kill(int(handle.data["child"]), signal.SIGKILL)
        ended = await sessions.runtime.wait(handle)
        assert (ended.reason, ended.code) == ("exited", -signal.SIGKILL)

        handle = await sessions.launch("sh", "-c", "setsid sleep 1000 & echo up; sleep 1000")
        await sessions.wait_for_log(handle, "up")
        os.kill(int(handle.data["pid"]), signal.SIGKILL)
        assert (await sessions.runtime.wait(handle)).reason == "lost"
        assert pids_with_variable(SESSION_VARIABLE, handle.name) == []
        group = ControlGroup(handle.name)
        group.find()
        assert group.folders == []
        assert list((sessions.root / handle.name / "secrets").iterdir()) == []

    run(body, tmp_path)


# Leaves a process without the session's variables, in a session of its own and without a parent.
ESCAPE = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        code = "import os, time; os.symlink(str(os.getpid()), 'escaped'); time.sleep(1000)"
        os.execve(sys.executable, [sys.executable, "-S", "-c", code], {})
    os._exit(0)
while not os.path.islink("escaped"):
    time.sleep(0.01)
try:
    os.kill(os.getppid(), 9)
except PermissionError:
    pass  # Its supervisor is root's.
time.sleep(1000)
"""


def test_no_process_outlives_a_session_that_kills_its_supervisor(tmp_path: Path) -> None:
    probe = ControlGroup(f"probe-{os.getpid()}")
    probe.create(64, 2**30, None)
    probe.remove()
    if not probe.folders:
        pytest.skip("this machine offers no control groups to this user")

    async def body(sessions: Sessions) -> None:
        handle = await sessions.launch(sys.executable, "-S", "-c", ESCAPE)
        link = sessions.root / handle.name / "work" / "escaped"
        await async_wait_until(link.is_symlink, TIMEOUT)
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(handle.data["pid"]), signal.SIGKILL)
        assert (await sessions.runtime.wait(handle)).reason == "lost"
        escaped = int(link.readlink().name)
        assert start_time(escaped) is None

    run(body, tmp_path)


def test_a_session_outlives_the_runtime_that_started_it(tmp_path: Path) -> None:
    async def body(sessions: Sessions) -> None:
        script = "echo one; while [ ! -e go ]; do sleep 0.01; done; echo two; exit 5"
        handle = await sessions.launch("sh", "-c", script)
        await sessions.wait_for_log(handle, "one")
        await sessions.runtime.close()
        sessions.runtime = ProcessRuntime(sessions.root, "none")
        assert await sessions.runtime.remove_orphans({handle.name}) == []
        (sessions.root / handle.name / "work" / "go").touch()
        ended = await sessions.runtime.wait(handle)
        assert (ended.reason, ended.code) == ("exited", 5)
        assert sessions.log(handle) == "one\ntwo\n"
        # It ended while nobody looked: the same answer.
        assert await ProcessRuntime(sessions.root, "none").wait(handle) == ended

    run(body, tmp_path)


def test_sessions_that_nobody_knows_are_ended(tmp_path: Path) -> None:
    async def body(sessions: Sessions) -> None:
        known = await sessions.launch("sleep", "1000")
        unknown = await sessions.launch("sleep", "1000")
        assert await sessions.runtime.remove_orphans({known.name}) == [unknown.name]
        assert pids_with_variable(SESSION_VARIABLE, unknown.name) == []
        assert start_time(int(known.data["child"])) is not None
        assert list((sessions.root / unknown.name / "secrets").iterdir()) == []

    run(body, tmp_path)


def test_a_reused_pid_is_not_mistaken_for_a_session(tmp_path: Path) -> None:
    async def body(sessions: Sessions) -> None:
        handle = await sessions.launch("true")
        await sessions.runtime.wait(handle)
        (sessions.root / handle.name / "exit.json").unlink()
        stale = SessionHandle(handle.name, handle.data | {"pid": os.getpid(), "child": os.getpid()})
        await sessions.runtime.stop(stale)
        await sessions.runtime.kill(stale)
        assert (await sessions.runtime.wait(stale)).reason == "lost"

    run(body, tmp_path)


@needs_bubblewrap
def test_a_sandboxed_session_sees_nothing_of_another(tmp_path: Path) -> None:
    async def body(sessions: Sessions) -> None:
        other = await sessions.launch("sleep", "1000")
        folder = sessions.root / other.name
        script = (
            f"cat {folder}/secrets/token; ls {folder}; ls {sessions.root}; ls {tmp_path};"
            f" kill -0 {other.data['child']}; touch /etc/x; touch ok && echo writable;"
            " cat ../secrets/token; echo; ls /proc | grep -c '^[0-9]*$'"
        )
        handle = await sessions.launch("sh", "-c", script)
        await sessions.runtime.wait(handle)
        log = sessions.log(handle)
        assert other.name not in log.replace(f"{folder}", "")
        assert log.count("secret") == log.count("secrets") + 1, "its own, and no other"
        assert "writable" in log and "Read-only file system" in log
        assert "No such process" in log
        assert int(log.split()[-1]) < 8

    run(body, tmp_path, sandbox="auto")


@needs_bubblewrap
def test_a_program_that_the_sandbox_does_not_have_cannot_be_launched(tmp_path: Path) -> None:
    async def body(sessions: Sessions, script: Path) -> None:
        script.chmod(0o755)
        hidden = tmp_path / "hidden"
        hidden.write_text("#!/bin/sh\n")
        hidden.chmod(0o755)
        link = tmp_path / "link"
        link.symlink_to("/bin/true")
        chain = Path(f"{script}.link")
        chain.symlink_to(link)
        for command, named in (
            ("/no/such/program", "/no/such/program"),
            ("no-such-program", "no-such-program"),
            ("/etc/passwd", "/etc/passwd"),
            (str(hidden), "hidden"),
            (str(link), "link"),
            (str(chain), "link"),
            (str(script), "/no/such/interpreter"),
        ):
            with pytest.raises(LaunchFailed, match=f"cannot be started.*{named}"):
                await sessions.launch(command)
        chain.unlink()
        assert not list(sessions.root.glob("*/secrets/*"))

    # A sandbox hides /tmp.
    with tempfile.NamedTemporaryFile("w", dir="/var/tmp") as file:
        file.write("#!/no/such/interpreter\n")
        file.flush()
        path = Path(file.name)
        run(lambda sessions: body(sessions, path), tmp_path, sandbox="auto")


@needs_bubblewrap
def test_a_signal_in_the_sandbox_is_a_signal_and_not_an_exit(tmp_path: Path) -> None:
    async def body(sessions: Sessions) -> None:
        handle = await sessions.launch("sh", "-c", "kill -9 $$")
        ended = await sessions.runtime.wait(handle)
        assert (ended.code, ended.is_lost) == (-signal.SIGKILL, True)
        handle = await sessions.launch("sh", "-c", "exit 3")
        assert (await sessions.runtime.wait(handle)).code == 3

    run(body, tmp_path, sandbox="auto")


@needs_bubblewrap
def test_a_hardened_session_has_no_network_unless_it_asks(tmp_path: Path) -> None:
    async def count_interfaces(sessions: Sessions, network: bool | None) -> int:
        command = ("sh", "-c", "grep -c : /proc/net/dev")
        handle = await sessions.launch(*command, hardened=True, network=network)
        await sessions.runtime.wait(handle)
        return int(sessions.log(handle))

    async def body(sessions: Sessions) -> None:
        ours = len(Path("/proc/net/dev").read_text().splitlines()) - 2
        assert await count_interfaces(sessions, None) == 1
        assert await count_interfaces(sessions, True) == ours

    run(body, tmp_path, sandbox="none")


@needs_bubblewrap
def test_a_sandboxed_session_reaches_no_service_by_a_socket_in_run(tmp_path: Path) -> None:
    """Such as those of Docker or systemd, which would start a command outside of the sandbox."""

    async def body(sessions: Sessions) -> None:
        for hardened in (True, False):
            handle = await sessions.launch("sh", "-c", "ls /run /var/run/", hardened=hardened)
            await sessions.runtime.wait(handle)
            shown = {"NetworkManager", "current-system", "resolvconf", "systemd"}
            assert set(sessions.log(handle).split()) <= {"/run:", "/var/run/:", *shown}

    run(body, tmp_path, sandbox="auto")


def test_a_hardened_session_is_not_started_without_a_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "gatepost.tasks.runtimes.process_runtime.find_bubblewrap", lambda user: None
    )

    async def body(sessions: Sessions) -> None:
        with pytest.raises(LaunchFailed, match="needs a sandbox"):
            await sessions.launch("true", hardened=True)

    run(body, tmp_path)


def test_a_command_inherits_no_descriptor_but_its_own(tmp_path: Path) -> None:
    async def body(sessions: Sessions) -> None:
        # 3 is the folder that `listdir` reads.
        listing = "import os; print([n for n in os.listdir('/proc/self/fd') if int(n) > 3])"
        handle = await sessions.launch(sys.executable, "-S", "-c", listing)
        assert (await sessions.runtime.wait(handle)).is_success
        assert sessions.log(handle) == "[]\n"

    run(body, tmp_path)


def test_a_supervisor_whose_session_has_ended_gets_the_next_one(tmp_path: Path) -> None:
    async def body(sessions: Sessions) -> None:
        first = await sessions.launch("true")
        assert (await sessions.runtime.wait(first)).is_success
        pids = set()
        for status in range(3):
            handle = await sessions.launch("sh", "-c", f"echo {status}; exit {status}")
            assert (await sessions.runtime.wait(handle)).code == status
            assert sessions.log(handle) == f"{status}\n"
            pids.add(handle.data["pid"])
        assert pids == {first.data["pid"]}

    run(body, tmp_path)


def test_a_late_stop_does_not_reach_the_next_session_of_its_supervisor(tmp_path: Path) -> None:
    async def body(sessions: Sessions) -> None:
        first = await sessions.launch("true")
        await sessions.runtime.wait(first)
        second = await sessions.launch("sh", "-c", "echo ready; sleep 0.3; exit 5")
        await sessions.wait_for_log(second, "ready")
        assert second.data["pid"] == first.data["pid"]
        await sessions.runtime.stop(first)
        await sessions.runtime.kill(first)
        # Even a signal that was on its way is not for this session.
        os.kill(int(first.data["pid"]), signal.SIGTERM)
        assert (await sessions.runtime.wait(second)).code == 5

    run(body, tmp_path)


def test_sessions_go_on_and_begin_when_the_spawner_was_killed(tmp_path: Path) -> None:
    async def body(sessions: Sessions) -> None:
        running = await sessions.launch("sh", "-c", "echo ready; sleep 0.3")
        waiting = await sessions.launch("true")
        await sessions.runtime.wait(waiting)
        spawner = sessions.runtime._spawners[-1]._process
        spawner.kill()
        spawner.wait()
        assert (await sessions.runtime.wait(await sessions.launch("true"))).is_success
        assert (await sessions.runtime.wait(running)).is_success
        # A supervisor without a spawner has nothing to wait for.
        await async_wait_until(lambda: start_time(int(waiting.data["pid"])) is None, TIMEOUT)

    run(body, tmp_path)


def test_waiting_supervisors_end_with_the_runtime(tmp_path: Path) -> None:
    pids = []

    async def body(sessions: Sessions) -> None:
        handles = [await sessions.launch("true") for _ in range(6)]
        for handle in handles:
            await sessions.runtime.wait(handle)
            pids.append(int(handle.data["pid"]))

    run(body, tmp_path)
    wait_until(lambda: all(start_time(pid) is None for pid in pids), TIMEOUT)
