"""A small process that forks the supervisors of sessions: starting one costs no interpreter.

The gateway describes a session in one line of JSON, and gets one line of JSON back: the status of
the session, or its error. The spawner ends when the gateway does. The supervisors go on.

Only the standard library.
"""

import gc
import json
import os
import signal
import socket
import sys

from gatepost.hub.runtimes.process_identity import boot_id
from gatepost.hub.runtimes.session_supervisor import SessionSupervisor


def run_spawner(descriptor: int) -> None:
    """Serve launches until the other end of the socket is closed."""
    # Nobody waits for supervisors: the gateway watches them, and the kernel reaps them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # An interrupt from the terminal is for the gateway, which then closes the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A collection would write to every object, and so copy the pages that forks share.
    gc.disable()
    # Read once here, and not once in each fork.
    boot_id()
    # No command of a session may speak to the gateway over this socket.
    os.set_inheritable(descriptor, False)
    with socket.socket(fileno=descriptor) as channel, channel.makefile("rb") as lines:
        for line in lines:
            if os.fork() == 0:
                run_supervisor(line, channel)


def run_supervisor(line: bytes, channel: socket.socket) -> None:
    """In the fork: start the session, tell the gateway, and stay with it until its end."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        launch = json.loads(line)
        supervisor, answer = None, {}
        try:
            supervisor = SessionSupervisor(launch)
            answer = supervisor.start()
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        channel.sendall(json.dumps(answer | {"folder": launch["folder"]}).encode() + b"\n")
        channel.close()
        if supervisor is not None and "error" not in answer:
            supervisor.supervise()
    finally:
        os._exit(0)


if __name__ == "__main__":
    run_spawner(int(sys.argv[1]))
