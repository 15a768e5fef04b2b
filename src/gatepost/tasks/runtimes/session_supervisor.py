"""The supervisor of one session: a small process between the gateway and the session's command.

It outlives the gateway. It starts the command with limits in a new process group, writes the
command's output to the bounded log, ends everything that the command leaves behind, and writes how
the command ended to `exit.json`. A SIGTERM asks it to end the session. If it is killed itself, the
kernel ends the command.

Only the standard library: session_spawner.py forks supervisors from a small process.
"""

import contextlib
import ctypes
import json
import os
import resource
import selectors
import signal
import time
from functools import cache

from gatepost.tasks.runtimes.control_group import ControlGroup
from gatepost.tasks.runtimes.process_identity import (
    boot_id,
    kill_group,
    own_child_pids,
    sandboxed_pids,
    send_signal,
    start_time,
)
from gatepost.tasks.runtimes.rotating_log import RotatingLog

# Fewer modules make a smaller process to fork.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STATUS_FILE, EXIT_FILE, STOP_FILE = "status.json", "exit.json", "stop"
SECRETS_FOLDER, WORK_FOLDER = "secrets", "work"
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 36, 38
_READ_BYTES = 65_536
_DRAIN_SECS = 1.0
_KILL_PAUSE_SECS = 0.005
_SIGNAL_BASE = 128
# Sessions that keep every core busy leave the gateway and its agents most of them.
_NICENESS = 5
_OTHER_USER = (
    " (the gateway runs as root, so its sessions run as other users, which enter no folder that is"
    " closed to others; see docs/operations.md)"
)
_prctl = ctypes.CDLL(None, use_errno=True).prctl


def become_supervisor() -> None:
    """Make this process the leader of a new session, and the parent of all orphans in it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class SessionSupervisor:
    """`launch` has the session's folder, its command, environment and limits."""

    def __init__(self, launch: "dict[str, Any]") -> None:
        self._folder: str = launch["folder"]
        self._launch = launch
        self._limits: dict[str, Any] = self._launch["limits"]
        self._group = ControlGroup(self._launch["name"])
        self._is_other_user = os.geteuid() == 0
        self._child = 0
        self._identity: dict[str, Any] = {}
        self._status: int | None = None
        self._reason = "exited"
        self._stop_at: float | None = None
        self._deadline = time.monotonic() + float(self._limits["seconds"])

    def start(self) -> "dict[str, Any]":
        """Start the command; returns how the session can be found again, or an `error`."""
        self._wakeups, self._wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _do_nothing)
        signal.signal(signal.SIGTERM, self._begin_stop)
        self._log = RotatingLog(self._folder, self._launch["log_bytes"])
        self._group.create(
            self._limits["processes"], self._limits["memory"], self._limits.get("cpus")
        )
        error = self._start_command()
        if error:
            self._clean_up()
            return {"error": error}
        pid, its = os.getpid(), start_time(self._child)
        self._identity = {
            "boot": boot_id(),
            "pid": pid,
            "started": _own_start_time(pid),
            "child": self._child,
            "child_started": its or 0,
        }
        _write_file(f"{self._folder}/{STATUS_FILE}", self._identity)
        return self._identity

    def supervise(self) -> None:
        """Copy the output until the command has ended; then end its remaining processes."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._output, selectors.EVENT_READ)
            selector.register(self._wakeups, selectors.EVENT_READ)
            while self._status is None:
                self._wait_for_event(selector)
        self._end_leftovers()
        self._drain_output()
        self._clean_up()
        code = self._exit_code()
        ended = {"reason": self._reason, "code": code, "at": time.time_ns() // 1_000_000}
        # The file's existence means that the session has ended, so it must appear complete. The
        # status file is renamed to it, because creating a file costs more.
        _write_file(f"{self._folder}/{STATUS_FILE}", self._identity | ended)
        os.replace(f"{self._folder}/{STATUS_FILE}", f"{self._folder}/{EXIT_FILE}")  # noqa: PTH105
        os.close(self._output)

    def _exit_code(self) -> int:
        """The exit code of the command; negative for a signal, in a sandbox too."""
        code = os.waitstatus_to_exitcode(self._status or 0)
        # Bubblewrap exits with such a code if a signal ended the command.
        is_signal = self._launch["is_sandboxed"] and code > _SIGNAL_BASE
        return _SIGNAL_BASE - code if is_signal else code

    # -- the command

    def _start_command(self) -> str:
        """Fork and execute the command; returns the error if it cannot be executed."""
        self._output, output = os.pipe2(os.O_CLOEXEC)
        errors, error_end = os.pipe2(os.O_CLOEXEC)
        # The child waits until it is in its control group: nothing it starts can escape that.
        ready, ready_end = os.pipe2(os.O_CLOEXEC)
        self._child = os.fork()
        if self._child == 0:
            os.close(ready_end)
            self._execute(ready, output, error_end)
        for descriptor in (output, error_end, ready):
            os.close(descriptor)
        self._admit_child(ready_end)
        error = _read_everything(errors).decode(errors="replace")
        os.set_blocking(self._output, False)
        if error:
            os.waitpid(self._child, 0)
            os.close(self._output)
        return error

    def _admit_child(self, ready_end: int) -> None:
        """Put the child into its control groups, and tell it which limits these hold."""
        self._group.add_process(self._child)
        held = bytes((self._group.limits_processes, self._group.limits_memory))
        with contextlib.suppress(OSError):
            os.write(ready_end, held)
        os.close(ready_end)

    def _execute(self, ready: int, output: int, error_end: int) -> None:
        """In the child: set the limits and become the command."""
        try:
            holds_processes, holds_memory = os.read(ready, 2)
            os.setsid()
            _prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            self._set_limits(holds_processes=bool(holds_processes), holds_memory=bool(holds_memory))
            self._become_user(output)
            # The kernel forgets this signal when the user changes.
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            os.chdir(self._launch["work"])
            command = self._launch["command"]
            os.execvpe(command[0], command, self._launch["environment"])
        except BaseException as error:
            said = str(error) or "it cannot be executed"
            if self._is_other_user and isinstance(error, FileNotFoundError | PermissionError):
                said += _OTHER_USER
            os.write(error_end, said.encode()[:1000])
        finally:
            os._exit(127)

    def _become_user(self, output: int) -> None:
        """Give up root for good, if this process has it."""
        if not self._is_other_user:
            return
        uid, gid = self._launch["user"]
        # The command can open /dev/stdout.
        os.fchown(output, uid, gid)
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)

    def _set_limits(self, *, holds_processes: bool, holds_memory: bool) -> None:
        """Set the limits that the control groups do not enforce, and lower the priority."""
        limits = self._limits
        os.nice(_NICENESS)
        _limit(resource.RLIMIT_CORE, 0)
        if not holds_memory:
            # This limits the address space, of which some programs reserve far more than they use.
            _limit(resource.RLIMIT_AS, limits["memory"])
        _limit(resource.RLIMIT_NOFILE, limits["open_files"])
        _limit(resource.RLIMIT_FSIZE, limits["file_bytes"])
        if limits.get("cpu_seconds") is not None:
            _limit(resource.RLIMIT_CPU, limits["cpu_seconds"])
        if not holds_processes or self._launch["is_private_user"]:
            # This limit counts all processes of the user.
            _limit(resource.RLIMIT_NPROC, limits["processes"] + limits["user_processes"])

    # -- its life

    def _wait_for_event(self, selector: selectors.BaseSelector) -> None:
        now = time.monotonic()
        deadline = self._deadline if self._stop_at is None else self._stop_at
        for key, _ in selector.select(max(0.0, min(deadline - now, 3600.0))):
            if key.fd == self._output:
                self._carry_output(selector)
            else:
                _read_everything(self._wakeups, close=False)
        self._reap_children()
        now = time.monotonic()
        if self._stop_at is not None and now >= self._stop_at:
            self._kill_everything()
        elif self._stop_at is None and now >= self._deadline:
            self._reason = "time_limit"
            self._ask_to_end()

    def _begin_stop(self, *_: object) -> None:
        """Begin to stop the session, if a file confirms that the signal is for this one."""
        is_mine = os.path.exists(f"{self._folder}/{STOP_FILE}")  # noqa: PTH110
        if is_mine and self._stop_at is None and self._status is None:
            self._reason = "stopped"
            self._ask_to_end()

    def _ask_to_end(self) -> None:
        self._stop_at = time.monotonic() + float(self._launch["grace"])
        # The signal would end bubblewrap, and with it at once all that it runs.
        inside = sandboxed_pids(self._child) if self._launch["is_sandboxed"] else []
        for pid in inside:
            with contextlib.suppress(OSError):
                send_signal(pid, signal.SIGTERM)
        if not inside:
            with contextlib.suppress(OSError):
                os.killpg(self._child, signal.SIGTERM)

    def _kill_everything(self) -> None:
        self._stop_at = time.monotonic() + 1.0
        self._group.kill_all()
        kill_group(self._child)

    def _carry_output(self, selector: selectors.BaseSelector) -> None:
        try:
            data = os.read(self._output, _READ_BYTES)
        except BlockingIOError:
            return
        if data:
            self._log.write(data, time.monotonic())
        else:
            # The command closed its output and may go on without.
            selector.unregister(self._output)

    def _reap_children(self) -> None:
        """Reap the command, and orphaned processes that became our children."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                # The exit status was lost: count it as a failure instead of waiting for ever.
                self._status = self._status if self._status is not None else 256
                return
            if pid == 0:
                return
            if pid == self._child:
                self._status = status

    # -- its end

    def _end_leftovers(self) -> None:
        """End the remaining processes of the command, whose parent we are as their subreaper."""
        self._group.kill_all()
        kill_group(self._child)
        while leftovers := set(own_child_pids()) | self._group.list_pids() - {os.getpid()}:
            for pid in leftovers:
                send_signal(pid, signal.SIGKILL)
            self._reap_children()
            if own_child_pids():
                time.sleep(_KILL_PAUSE_SECS)

    def _drain_output(self) -> None:
        deadline = time.monotonic() + _DRAIN_SECS
        while time.monotonic() < deadline:
            try:
                data = os.read(self._output, _READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                return
            self._log.write(data, time.monotonic())

    def _clean_up(self) -> None:
        with contextlib.suppress(OSError):
            self._log.close()
        signal.set_wakeup_fd(-1)
        os.close(self._wakeups)
        os.close(self._wakeup)
        self._group.remove()
        _remove_files(f"{self._folder}/{SECRETS_FOLDER}")


@cache
def _own_start_time(pid: int) -> int:
    return start_time(pid) or 0


def _remove_files(folder: str) -> None:
    """Remove the files of a folder. The folder stays: some file systems take long to remove one."""
    try:
        # The session may have put a link to another folder there.
        names = [] if os.path.islink(folder) else os.listdir(folder)  # noqa: PTH114, PTH208
    except OSError:
        return
    for name in names:
        with contextlib.suppress(OSError):
            os.unlink(f"{folder}/{name}")  # noqa: PTH108


def _limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def _write_file(path: str, content: "dict[str, Any]") -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(descriptor, json.dumps(content).encode())
    finally:
        os.close(descriptor)


def _read_everything(descriptor: int, *, close: bool = True) -> bytes:
    pieces = []
    with contextlib.suppress(BlockingIOError):
        while piece := os.read(descriptor, 4096):
            pieces.append(piece)
    if close:
        os.close(descriptor)
    return b"".join(pieces)


def _do_nothing(*_: object) -> None:
    """A handler, so that the signal wakes the selector."""
