"""Control groups of sessions: limits on processes, memory and CPU, where the kernel offers them.

A machine has either the one hierarchy of version 2, or one for each controller of version 1. A
limit counts as set only if the kernel took both the limit and the process; an rlimit stands in for
one that it did not take. The one for CPU is used only for a session with such a limit: all sessions
in its groups together have the weight of one process outside.

Only the standard library: the supervisor of a session imports this.
"""

import os
from contextlib import suppress

_ROOT = "/sys/fs/cgroup"
_PARENT = "gatepost"
_PERIOD_MICROS = 100_000


class ControlGroup:
    """The folders of one session's control groups; empty without kernel support."""

    def __init__(self, name: str, root: str = _ROOT) -> None:
        self._name = name
        self._root = root
        # Folder → the limits that the kernel took there.
        self._groups: dict[str, set[str]] = {}

    @property
    def folders(self) -> list[str]:
        return list(self._groups)

    def create(self, processes: int, memory: int, cpus: float | None) -> None:
        if os.path.exists(f"{self._root}/cgroup.controllers"):  # noqa: PTH110
            self._create_unified(processes, memory, cpus)
        else:
            self._create_legacy(processes, memory, cpus)

    @property
    def limits_processes(self) -> bool:
        return self._is_set("pids.max")

    @property
    def limits_memory(self) -> bool:
        return self._is_set("memory.max") or self._is_set("memory.limit_in_bytes")

    def _is_set(self, limit: str) -> bool:
        return any(limit in limits for limits in self._groups.values())

    def add_process(self, pid: int) -> None:
        """Put a process into every group; a group that does not take it is removed."""
        for folder in self.folders:
            try:
                _write(f"{folder}/cgroup.procs", str(pid))
            except OSError:
                del self._groups[folder]
                _remove_group(folder)

    def list_pids(self) -> set[int]:
        pids: set[int] = set()
        for folder in self.folders:
            with suppress(OSError), open(f"{folder}/cgroup.procs") as file:  # noqa: PTH123
                pids |= {int(line) for line in file}
        return pids

    def kill_all(self) -> None:
        """End all processes at once, where the kernel can; see `list_pids` for the others."""
        for folder in self.folders:
            with suppress(OSError):
                _write(f"{folder}/cgroup.kill", "1")

    def remove(self) -> None:
        for folder in self.folders:
            _remove_group(folder)

    def find(self) -> None:
        """Find groups that an ended supervisor left behind."""
        parents = [self._root, *(f"{self._root}/{each}" for each in ("pids", "memory", "cpu"))]
        folders = [f"{parent}/{_PARENT}/{self._name}" for parent in parents]
        self._groups = {each: set() for each in folders if os.path.isdir(each)}  # noqa: PTH112

    def _create_unified(self, processes: int, memory: int, cpus: float | None) -> None:
        parent = f"{self._root}/{_PARENT}"
        with suppress(OSError):
            os.makedirs(parent, exist_ok=True)  # noqa: PTH103
            for controller in ("pids", "memory", *(() if cpus is None else ("cpu",))):
                with suppress(OSError):
                    _write(f"{self._root}/cgroup.subtree_control", f"+{controller}")
                    _write(f"{parent}/cgroup.subtree_control", f"+{controller}")
        limits = {
            "pids.max": str(processes),
            "memory.max": str(memory),
            "memory.swap.max": "0",
        }
        if cpus is not None:
            limits["cpu.max"] = f"{int(cpus * _PERIOD_MICROS)} {_PERIOD_MICROS}"
        self._make_group(f"{parent}/{self._name}", limits)

    def _create_legacy(self, processes: int, memory: int, cpus: float | None) -> None:
        by_controller = {
            "pids": {"pids.max": str(processes)},
            "memory": {"memory.limit_in_bytes": str(memory)},
        }
        if cpus is not None:
            by_controller["cpu"] = {"cpu.cfs_quota_us": str(int(cpus * _PERIOD_MICROS))}
        for controller, limits in by_controller.items():
            if os.path.isdir(f"{self._root}/{controller}"):  # noqa: PTH112
                self._make_group(f"{self._root}/{controller}/{_PARENT}/{self._name}", limits)

    def _make_group(self, folder: str, limits: dict[str, str]) -> None:
        try:
            os.makedirs(folder, exist_ok=True)  # noqa: PTH103
        except OSError:
            return
        taken = self._groups.setdefault(folder, set())
        for name, value in limits.items():
            with suppress(OSError):
                _write(f"{folder}/{name}", value)
                taken.add(name)


def _remove_group(folder: str) -> None:
    with suppress(OSError):
        os.rmdir(folder)  # noqa: PTH106


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
