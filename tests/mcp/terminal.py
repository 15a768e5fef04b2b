"""A program in a terminal of its own, which a test types into."""

import contextlib
import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

_SIZE = struct.pack("HHHH", 45, 140, 0, 0)
# What terminals answer when programs ask where the cursor is, and what they are.
_ANSWERS = {b"\x1b[6n": b"\x1b[1;1R", b"\x1b[c": b"\x1b[?62c"}


class TerminalProgram:
    def __init__(self, command: list[str], env: Mapping[str, str], folder: Path) -> None:
        self._terminal, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, _SIZE)
        self.process = subprocess.Popen(
            command,
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env={**env, "TERM": "xterm-256color"},
            cwd=folder,
            start_new_session=True,
        )
        os.close(inner)
        self.output = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._reader.join(5)
        os.close(self._terminal)

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def wait_until_quiet(self, secs: float = 2.0, timeout: float = 60) -> None:
        """Wait until the program has drawn its screen: it writes nothing for a while."""
        deadline = time.monotonic() + timeout
        seen, since = 0, time.monotonic()
        while time.monotonic() < deadline:
            if len(self.output) != seen:
                seen, since = len(self.output), time.monotonic()
            if seen and time.monotonic() - since > secs:
                return
            time.sleep(0.05)
        raise AssertionError("the program does not stop drawing")

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while chunk := os.read(self._terminal, 65_536):
                self.output += chunk
                for question, answer in _ANSWERS.items():
                    if question in chunk:
                        os.write(self._terminal, answer)
