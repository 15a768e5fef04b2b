"""A small process that forks the supervisors of sessions: starting one costs no interpreter.

The gateway sends the folder of a session as one line, and gets one line of JSON back: the status of
the session, or its error. The spawner ends when the gateway does. The supervisors go on.

Only the standard library.
"""

import json
import os
import signal
import socket
import sys

from gatepost.hub.runtimes.session_supervisor import SessionSupervisor


def run_spawner(descriptor: int) -> None:
    """Serve launches until the other end of the socket is closed."""
    # Nobody waits for supervisors: the gateway watches them, and the kernel reaps them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # An interrupt from the terminal is for the gateway, which then closes the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=descriptor) as channel, channel.makefile("rb") as lines:
        for line in lines:
            folder = line.decode().rstrip("\n")
            if os.fork() == 0:
                run_supervisor(folder, channel)


def run_supervisor(folder: str, channel: socket.socket) -> None:
    """In the fork: start the session, tell the gateway, and stay with it until its end."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        supervisor, answer = None, {}
        try:
            supervisor = SessionSupervisor(folder)
            answer = supervisor.start()
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        channel.sendall(json.dumps(answer | {"folder": folder}).encode() + b"\n")
        channel.close()
        if supervisor is not None and "error" not in answer:
            supervisor.supervise()
    finally:
        os._exit(0)


if __name__ == "__main__":
    run_spawner(int(sys.argv[1]))
