"""Real containers, in engines of the tests' own: Docker, and Podman behind the same socket.

Where one cannot run, the reason is printed.
"""

import asyncio
import gc
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gatepost.errors import LaunchFailed
from gatepost.tasks.agent_definition import AgentDefinition, SessionLimits
from gatepost.tasks.runtimes.docker_runtime import DockerRuntime
from gatepost.tasks.session_runtime import SessionHandle, SessionSpec
from gatepost.tasks.session_states import SessionInput
from tests.tasks.runtimes.docker_engine import (
    ENGINES,
    IMAGE,
    find_engine_problem,
    reason_against,
    running_engine,
)
from tests.waiting import async_wait_until

# The SDK leaves the sockets of refused connections and of streams to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(autouse=True)
def collect_sockets() -> Iterator[None]:
    yield
    gc.collect()


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    if (reason := reason_against(request.param)) is not None:
        pytest.skip(reason)
    with running_engine(request.param) as address:
        if problem := find_engine_problem(address):
            pytest.skip(problem)
        yield address


class Containers:
    def __init__(self, root: Path, engine: str) -> None:
        self.root = root
        self.engine = engine
        self.runtime = DockerRuntime(root, engine)
        self.steps: list[SessionInput] = []

    def spec(self, name: str, script: str, grace: float = 1.0, **fields: Any) -> SessionSpec:
        limits = SessionLimits(**{"memory_mb": 64, **fields.pop("limits", {})})
        command = ("/bin/sh", "-c", script)
        given = {"image": IMAGE, "command": command, "network": False, **fields}
        return SessionSpec(
            name=name,
            folder=self.root / name,
            definition=AgentDefinition(name="a", limits=limits, **given),
            environment={"COLOUR": "red"},
            files={"task.json": b'{"x":1}'},
            secrets={"token": b"secret"},
            log_bytes=64 * 1024,
            stop_grace=grace,
        )

    async def launch(self, name: str, script: str, **fields: Any) -> SessionHandle:
        return await self.runtime.launch(self.spec(name, script, **fields), self.steps.append)

    def log(self, handle: SessionHandle) -> str:
        return self.runtime.read_log(handle.name, 0, 1_000_000).data.decode()

    async def wait_for_log(self, handle: SessionHandle, text: str) -> "asyncio.Task[Any]":
        """The output is copied while somebody waits for the session's end."""
        waiting = asyncio.create_task(self.runtime.wait(handle))
        await async_wait_until(lambda: text in self.log(handle), 30)
        return waiting

    def names(self) -> list[str]:
        return [each.labels["gatepost.session"] for each in self.runtime._list_containers()]


def run(test: Callable[[Containers], Awaitable[None]], root: Path, engine: str) -> None:
    async def body() -> None:
        containers = Containers(root / "sessions", engine)
        try:
            await asyncio.wait_for(test(containers), 100)
        finally:
            await containers.runtime.remove_orphans(())
            await containers.runtime.close()

    asyncio.run(body())


def test_a_container_runs_and_nothing_is_left_of_it(tmp_path: Path, engine: str) -> None:
    async def body(containers: Containers) -> None:
        script = (
            "cat ../secrets/token ../task.json; env | grep COLOUR; echo 5 > result.json; exit 3"
        )
        handle = await containers.launch("one", script.replace("| grep COLOUR", ""))
        ended = await containers.runtime.wait(handle)
        assert (ended.reason, ended.code) == ("exited", 3)
        log = containers.log(handle)
        assert log.startswith('secret{"x":1}') and "COLOUR=red" in log
        assert (containers.root / "one" / "work" / "result.json").read_text() == "5\n"
        assert list((containers.root / "one" / "secrets").iterdir()) == []
        assert containers.names() == []
        assert containers.steps == list(SessionInput)[:4]

    run(body, tmp_path, engine)


def test_a_hardened_container_is_read_only_and_limited(tmp_path: Path, engine: str) -> None:
    async def body(containers: Containers) -> None:
        script = (
            "touch /etc/x; touch /tmp/ok && echo writable; cat /proc/self/status | head -n 60;"
            " cat /sys/fs/cgroup/pids.max /sys/fs/cgroup/pids/pids.max; ls /sys/class/net"
        )
        spec = containers.spec("hard", script, hardened=True, limits={"processes": 33})
        handle = await containers.runtime.launch(spec, containers.steps.append)
        attrs = (await containers.runtime._find(handle)).attrs["HostConfig"]
        await containers.runtime.wait(handle)
        log = containers.log(handle)
        assert "Read-only file system" in log and "writable" in log
        assert "CapEff:\t0000000000000000" in log and "NoNewPrivs:\t1" in log
        assert (attrs["PidsLimit"], attrs["Memory"]) == (33, 64 * 1024 * 1024)
        assert attrs["NetworkMode"] == "none"

    run(body, tmp_path, engine)


def test_a_last_line_without_a_newline_is_in_the_log(tmp_path: Path, engine: str) -> None:
    async def body(containers: Containers) -> None:
        for name, script, expected in (
            ("late", "echo a; printf b; sleep 1; printf c", "a\nbc"),
            ("alone", "printf only", "only"),
            ("whole", "echo a; echo b", "a\nb\n"),
        ):
            handle = await containers.launch(name, script)
            await containers.runtime.wait(handle)
            assert containers.log(handle) == expected

    run(body, tmp_path, engine)


def test_every_container_has_a_limit_on_its_cpus(tmp_path: Path, engine: str) -> None:
    async def body(containers: Containers) -> None:
        for name, limits, expected in (("default", {}, 1.0), ("asked", {"cpus": 0.5}, 0.5)):
            handle = await containers.launch(name, "true", limits=limits)
            found = (await containers.runtime._find(handle)).attrs["HostConfig"]["NanoCpus"]
            await containers.runtime.wait(handle)
            assert found == int(expected * 1e9)

    run(body, tmp_path, engine)


def test_stopping_ends_a_container_that_ignores_it(tmp_path: Path, engine: str) -> None:
    async def body(containers: Containers) -> None:
        handle = await containers.launch("deaf", "trap '' TERM; echo up; sleep 1000; sleep 1000")
        waiting = await containers.wait_for_log(handle, "up")
        await containers.runtime.stop(handle)
        assert (await waiting).code == -signal.SIGKILL
        limited = await containers.launch("late", "exec sleep 1000", limits={"seconds": 0.1})
        assert (await containers.runtime.wait(limited)).reason == "time_limit"

    run(body, tmp_path, engine)


def test_a_container_outlives_the_runtime_and_strangers_are_removed(
    tmp_path: Path, engine: str
) -> None:
    async def body(containers: Containers) -> None:
        script = "echo one; until [ -e go ]; do sleep 0.05; done; echo two; exit 5"
        handle = await containers.launch("kept", script)
        await containers.launch("unknown", "exec sleep 1000")
        await containers.runtime.close()
        containers.runtime = DockerRuntime(containers.root, engine)
        assert await containers.runtime.remove_orphans({"kept"}) == ["unknown"]
        assert containers.names() == ["kept"]
        waiting = await containers.wait_for_log(handle, "one")
        (containers.root / "kept" / "work" / "go").touch()
        ended = await waiting
        assert (ended.reason, ended.code) == ("exited", 5)
        assert containers.log(handle) == "one\ntwo\n"
        # It is gone now: whoever looks for it learns that.
        assert (await containers.runtime.wait(handle)).reason == "lost"

    run(body, tmp_path, engine)


def test_an_image_that_is_missing_cannot_be_launched(tmp_path: Path, engine: str) -> None:
    async def body(containers: Containers) -> None:
        with pytest.raises(LaunchFailed, match="refused"):
            await containers.launch("none", "true", image="no-such-image-here")
        assert list((containers.root / "none" / "secrets").iterdir()) == []

    run(body, tmp_path, engine)


def test_an_engine_that_is_missing_is_named(tmp_path: Path) -> None:
    async def body(containers: Containers) -> None:
        with pytest.raises(LaunchFailed, match="no container engine answers at unix:"):
            await containers.launch("x", "true")
        assert await containers.runtime.remove_orphans(()) == []

    run(body, tmp_path, f"unix://{tmp_path}/no.sock")
