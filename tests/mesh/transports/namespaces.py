"""Network namespaces for tests: two machines on one, joined by a cable that can be cut."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from typing import Any, Self

ROOT = Path(__file__).parents[3]


def missing_for_namespaces(*tools: str) -> str:
    """Why this machine cannot run such a test; empty if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if lacking := [tool for tool in ("ip", "nsenter", *tools) if shutil.which(tool) is None]:
        return f"{', '.join(lacking)} not installed"
    if not Path("/dev/net/tun").exists():
        return "/dev/net/tun is missing"
    return ""


def run_ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@contextmanager
def joined_namespaces(prefix: str, first: str, second: str) -> Iterator[tuple[str, str]]:
    """Two namespaces with these addresses (of a /24) at the ends of one cable."""
    names = (f"{prefix}a", f"{prefix}b")
    try:
        for name in names:
            run_ip("netns", "add", name)
        run_ip("link", "add", f"{prefix}0", "netns", names[0], "type", "veth", "peer", "name",
               f"{prefix}1", "netns", names[1])  # fmt: skip
        for name, end, address in zip(names, "01", (first, second), strict=True):
            run_ip("-n", name, "address", "add", f"{address}/24", "dev", f"{prefix}{end}")
            run_ip("-n", name, "link", "set", f"{prefix}{end}", "up")
            run_ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


class NamespacedProcess:
    """A Python script in a namespace, as a conversation of lines."""

    def __init__(self, namespace: str, script: Path, *arguments: str) -> None:
        command = ["nsenter", f"--net=/run/netns/{namespace}", sys.executable, str(script)]
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
        self._process = subprocess.Popen(
            [*command, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._lines: Queue[str] = Queue()
        self._reader = threading.Thread(target=self._read_lines, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def say(self, *words: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(words) + "\n")
        self._process.stdin.flush()

    def hear(self, first: str, secs: float = 20) -> list[str]:
        """The next line that begins with this word."""
        while True:
            words = self._lines.get(timeout=secs).split()
            if words[:1] == [first]:
                return words
            assert words[:1] != ["refused"], words

    def hears_nothing(self, first: str, secs: float) -> bool:
        try:
            self.hear(first, secs)
        except Empty:
            return True
        return False

    def _read_lines(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
