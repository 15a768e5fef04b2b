"""A small process that forks the supervisors of sessions, without starting an interpreter each.

The supervisor starts the session's command (session_supervisor.py).

The gateway describes a session in one line of JSON, and gets two lines of JSON back: the status of
the session or its error, and that it has ended. A supervisor whose session has ended waits for the
next one, because to fork another costs more than the session itself. The spawner ends when the
gateway does, and waiting supervisors with it. The others go on until their sessions have ended.

Only the standard library.
"""

import contextlib
import gc
import json
import os
import selectors
import signal
import socket
import sys

from gatepost.tasks.runtimes.folder_mounts import show_folders
from gatepost.tasks.runtimes.process_identity import boot_id
from gatepost.tasks.runtimes.session_supervisor import SessionSupervisor, become_supervisor

_MAX_WAITING = 4
# Supervisors never collect garbage, so they are replaced after this many sessions.
_SESSIONS_PER_SUPERVISOR = 200
_READ_BYTES = 65_536


class SessionSpawner:
    """Gives each session to a supervisor that waits, or else to a new one."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        # One end of a socket pair for each supervisor; the other end is the supervisor's own.
        self._controls: set[socket.socket] = set()
        self._waiting: list[socket.socket] = []

    def serve(self) -> None:
        """Serve launches until the other end of the channel is closed."""
        rest = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._channel, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                # Reap ended sessions first, so that a new session can get a free supervisor.
                for control in self._controls & ready:
                    self._hear_supervisor(control, selector)
                if self._channel in ready:
                    data = self._channel.recv(_READ_BYTES)
                    if not data:
                        return
                    *lines, rest = (rest + data).split(b"\n")
                    for line in lines:
                        self._launch(line + b"\n", selector)

    def _hear_supervisor(self, control: socket.socket, selector: selectors.BaseSelector) -> None:
        """A supervisor waits for another session, or has ended."""
        if _receive(control) and len(self._waiting) < _MAX_WAITING:
            self._waiting.append(control)
        else:
            self._forget(control, selector)

    def _forget(self, control: socket.socket, selector: selectors.BaseSelector) -> None:
        """Close the socket of a supervisor, which ends it if it waits."""
        selector.unregister(control)
        self._controls.discard(control)
        if control in self._waiting:
            self._waiting.remove(control)
        control.close()

    def _launch(self, line: bytes, selector: selectors.BaseSelector) -> None:
        while self._waiting:
            control = self._waiting.pop()
            try:
                control.sendall(line)
            except OSError:
                self._forget(control, selector)  # It was killed.
            else:
                return
        ours, theirs = socket.socketpair()
        if os.fork() == 0:
            for control in (ours, *self._controls):
                control.close()
            run_supervisor(line, self._channel, theirs)
        theirs.close()
        self._controls.add(ours)
        selector.register(ours, selectors.EVENT_READ)


def run_spawner(descriptor: int, shown: "dict[str, list[str]]") -> None:
    """`shown` are the folders that sessions of other users need to reach."""
    # The kernel reaps supervisors; the gateway watches them by pidfd.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # An interrupt from the terminal is for the gateway, which then closes the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A collection would write to every object, and so copy the pages that forks share.
    gc.disable()
    # Read once here, and not once in each fork.
    boot_id()
    # Commands of sessions must not inherit this socket to the gateway.
    os.set_inheritable(descriptor, False)
    if shown:
        # Without this right, a session starts where its user can reach its folder anyway.
        with contextlib.suppress(OSError):
            show_folders(**shown)
    with socket.socket(fileno=descriptor) as channel:
        SessionSpawner(channel).serve()


def run_supervisor(line: bytes, channel: socket.socket, control: socket.socket) -> None:
    """In the fork: supervise one session after the other, as the spawner gives them."""
    try:
        become_supervisor()
        for left in reversed(range(_SESSIONS_PER_SUPERVISOR)):
            launch = json.loads(line)
            if not _run_session(launch, channel):
                return
            if left:
                # Report before the gateway hears of the end, so that its next session finds this
                # supervisor.
                control.sendall(b"w")
            ended = {"folder": launch["folder"], "ended": True}
            channel.sendall(json.dumps(ended).encode() + b"\n")
            line = _read_line(control) if left else b""
            if not line:
                return
    finally:
        os._exit(0)


def _run_session(launch: "dict[str, object]", channel: socket.socket) -> bool:
    """Start a session, report it, and supervise it to its end; False if it failed.

    If the gateway ends before it heard of the session, so does this process, and with it the
    session.
    """
    supervisor, folder = None, {"folder": launch["folder"]}
    try:
        supervisor = SessionSupervisor(launch)
        answer = supervisor.start()
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    channel.sendall(json.dumps(answer | folder).encode() + b"\n")
    if supervisor is None or "error" in answer:
        return False
    supervisor.supervise()
    return True


def _read_line(control: socket.socket) -> bytes:
    """The next line from the spawner; nothing if there is none."""
    line = b""
    while not line.endswith(b"\n"):
        data = _receive(control)
        if not data:
            return b""
        line += data
    return line


def _receive(control: socket.socket) -> bytes:
    try:
        return control.recv(_READ_BYTES)
    except OSError:
        return b""


if __name__ == "__main__":
    run_spawner(int(sys.argv[1]), json.loads(sys.argv[2]))
