"""Machines for tests: network namespaces on one bridge, each with its own home folder.

A machine's host name is not the name by which the others reach it.

`Machine.run` runs a line of shell as a person would type it on that machine. `scp FILE MACHINE:`
copies between the homes of machines.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

import gatepost
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
_SOURCE = Path(gatepost.__file__).parents[1]
_RUN_SECS = 30.0


def missing_for_machines() -> str:
    """The reason why this machine cannot make others; empty if it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need Linux and root"
    if shutil.which("ip") is None:
        return "there is no `ip`: apt-get install iproute2"
    probe = f"gatepost-probe-{os.getpid()}"
    added = _call("ip", "netns", "add", probe)
    _call("ip", "netns", "delete", probe)
    return f"no network namespace can be made: {added.stderr.strip()}" if added.returncode else ""


def require_machines() -> None:
    """Skip a test that this machine cannot run. Continuous integration as root fails it instead."""
    reason = missing_for_machines()
    if not reason:
        return
    if os.environ.get("CI") == "true" and sys.platform == "linux" and os.geteuid() == 0:
        pytest.fail(f"continuous integration has to run this test: {reason}")
    pytest.skip(f"no machines here: {reason}")


def _call(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _must(*command: str) -> None:
    done = _call(*command)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


class Machine:
    """A network namespace with a host name, an address on the bridge, and a home folder."""

    def __init__(self, network: "MachineNetwork", name: str, address: str) -> None:
        self.name = name
        self.host_name = f"box-{address.rpartition('.')[2]}"
        self.address = address
        self.home = network.folder / name
        self._namespace = network.namespace_of(name)
        self._network = network
        self._jobs: list[subprocess.Popen[bytes]] = []

    def run(self, line: str) -> str:
        """Run a line of shell and return its output; a line that ends in `&` goes on running."""
        if line.endswith("&"):
            self._start(line.removesuffix("&"))
            return ""
        done = subprocess.run(
            self._command(line),
            cwd=self.home,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=_RUN_SECS,
            check=False,
        )
        assert done.returncode == 0, f"{self.name}$ {line}\n{done.stdout}{done.stderr}{self.log()}"
        return done.stdout

    def wait_until_up(self) -> None:
        """Wait until the gateway that was started last listens."""
        wait_until(self._is_up, 20, failure=self.log)

    def _is_up(self) -> bool:
        file = self.home / ".gatepost" / "endpoint.json"
        return file.exists() and json.loads(file.read_bytes())["pid"] == self._jobs[-1].pid

    def log(self) -> str:
        files = (self.home / "log", self.home / ".gatepost" / "gateway.log")
        return "".join(file.read_text() for file in files if file.exists())

    def power_off(self) -> None:
        """Kill every process of the machine, without any chance to say good-bye."""
        self._kill_detached()
        for job in self._jobs:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
            job.wait()
        self._jobs.clear()

    def _kill_detached(self) -> None:
        """Kill the gateway that `up --detach` left behind. Jobs are killed elsewhere."""
        file = self.home / ".gatepost" / "endpoint.json"
        pid = json.loads(file.read_bytes())["pid"] if file.exists() else None
        if pid is None or pid in {job.pid for job in self._jobs}:
            return
        try:
            process = os.pidfd_open(pid)
            signal.pidfd_send_signal(process, signal.SIGKILL)
        except ProcessLookupError:
            return
        select.select([process], [], [], _RUN_SECS)
        os.close(process)
        file.unlink()

    def _start(self, line: str) -> None:
        with (self.home / "log").open("ab") as log:
            self._jobs.append(
                subprocess.Popen(
                    self._command(f"exec {line}"),
                    cwd=self.home,
                    env=self._environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def _command(self, line: str) -> list[str]:
        """A shell with the machine's host name, which the namespace of names keeps to itself."""
        named = f'hostname {self.host_name} && exec ip netns exec {self._namespace} sh -c "$0"'
        return ["unshare", "--uts", "sh", "-c", named, line]

    def _environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("GATEPOST_", "CYCLOPTS_"))}
        path = f"{self._network.tools}:{os.environ['PATH']}"
        homes = {"HOME": str(self.home), "MACHINES": str(self._network.folder)}
        return kept | homes | {"PATH": path, "PYTHONPATH": str(_SOURCE)}


class MachineNetwork:
    """Machines on one bridge, in a namespace of its own: nothing of the host is touched."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.folder = folder
        self.tools = folder / "tools"
        self._id = f"gp{os.getpid()}"
        self.machines = {
            name: Machine(self, name, f"10.77.0.{number}")
            for number, name in enumerate(names, start=1)
        }

    def namespace_of(self, name: str) -> str:
        return f"{self._id}-{name}"

    def __enter__(self) -> Self:
        try:
            self._install_tools()
            self._add_bridge()
            for number, machine in enumerate(self.machines.values()):
                self._add_machine(machine, number)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for machine in self.machines.values():
            machine.power_off()
        for name in ("bridge", *self.machines):
            _call("ip", "netns", "delete", self.namespace_of(name))
            shutil.rmtree(_hosts_folder(self.namespace_of(name)), ignore_errors=True)

    @contextlib.contextmanager
    def cut(self, name: str) -> Iterator[None]:
        """Pull the machine's cable while this lasts."""
        self._set_cable(name, "down")
        try:
            yield
        finally:
            self._set_cable(name, "up")

    def _set_cable(self, name: str, state: str) -> None:
        number = list(self.machines).index(name)
        _must("ip", "-n", self.namespace_of("bridge"), "link", "set", f"port{number}", state)

    def _install_tools(self) -> None:
        self.tools.mkdir(parents=True)
        copy = self.tools / "scp"
        copy.write_text('#!/bin/sh\nexec cp "$1" "$MACHINES/${2%:}/"\n')
        copy.chmod(0o755)

    def _add_bridge(self) -> None:
        bridge = self.namespace_of("bridge")
        _must("ip", "netns", "add", bridge)
        _must("ip", "-n", bridge, "link", "add", "bridge", "type", "bridge")
        _must("ip", "-n", bridge, "link", "set", "bridge", "up")

    def _add_machine(self, machine: Machine, number: int) -> None:
        bridge, own = self.namespace_of("bridge"), self.namespace_of(machine.name)
        _must("ip", "netns", "add", own)
        cable = (
            "link",
            "add",
            f"port{number}",
            "type",
            "veth",
            "peer",
            "name",
            "net",
            "netns",
            own,
        )
        _must("ip", "-n", bridge, *cable)
        _must("ip", "-n", bridge, "link", "set", f"port{number}", "master", "bridge", "up")
        _must("ip", "-n", own, "address", "add", f"{machine.address}/24", "dev", "net")
        _must("ip", "-n", own, "link", "set", "net", "up")
        _must("ip", "-n", own, "link", "set", "lo", "up")
        self._write_hosts(own)
        machine.home.mkdir(mode=0o700)
        (machine.home / ".venv" / "bin").mkdir(parents=True)
        for name, program in (("gatepost", "-m gatepost.cli"), ("python", "")):
            command = machine.home / ".venv" / "bin" / name
            command.write_text(f'#!/bin/sh\nexec {sys.executable} {program} "$@"\n')
            command.chmod(0o755)

    def _write_hosts(self, namespace: str) -> None:
        """`ip netns exec` shows this file as /etc/hosts to the machine's programs."""
        lines = ["127.0.0.1 localhost"]
        for each in self.machines.values():
            lines.append(f"{each.address} {each.name} {each.name}.example")
        folder = _hosts_folder(namespace)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "hosts").write_text("\n".join(lines) + "\n")


def _hosts_folder(namespace: str) -> Path:
    return Path("/etc/netns") / namespace
