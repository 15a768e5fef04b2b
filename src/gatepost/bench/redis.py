"""Measures Redis Streams on the same disk, for comparison with the mailbox.

The server fsyncs before it answers (`appendfsync always`). One process adds messages, reads them as
a consumer group and acks them, in pipelines as deep as the outstanding messages. So the client's
cost per message is minimal, lower than that of a client that awaits each message.
"""

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

from msgspec import Struct

from gatepost.bench.fsync import percentile
from gatepost.errors import BenchFailed

_TIMEOUT_SECS = 10.0
_KEY, _GROUP = b"bench", b"group"

RedisReply = bytes | int | None | list["RedisReply"]


class RedisResult(Struct, frozen=True):
    """Figures of Redis Streams; p50 and p99 are from add to read, one message at a time."""

    version: str
    per_sec: float
    p50_ms: float
    p99_ms: float


def is_redis_installed() -> bool:
    return shutil.which("redis-server") is not None


def measure_redis(
    folder: Path, *, messages: int, outstanding: int, size: int, singles: int
) -> RedisResult:
    """Start a server in `folder`, measure it, and stop it."""
    with _run_server(folder) as path, _RedisConnection(path) as redis:
        redis.run_commands([[b"XGROUP", b"CREATE", _KEY, _GROUP, b"0", b"MKSTREAM"]])
        payload = b"x" * size
        started = time.perf_counter()
        for _ in range(messages // outstanding):
            _run_round(redis, payload, outstanding)
        per_sec = messages // outstanding * outstanding / (time.perf_counter() - started)
        laps = sorted(_run_round(redis, payload, 1) * 1000 for _ in range(singles))
        return RedisResult(
            redis.server_version(), per_sec, percentile(laps, 50), percentile(laps, 99)
        )


def _run_round(redis: "_RedisConnection", payload: bytes, count: int) -> float:
    """Add, read and ack `count` messages; returns the seconds for add and read."""
    started = time.perf_counter()
    redis.run_commands([[b"XADD", _KEY, b"*", b"m", payload]] * count)
    read = [b"XREADGROUP", b"GROUP", _GROUP, b"me", b"COUNT", b"%d" % count]
    (streams,) = redis.run_commands([[*read, b"STREAMS", _KEY, b">"]])
    took = time.perf_counter() - started
    entries = streams[0][1] if isinstance(streams, list) else []  # type: ignore[index]
    ids = [entry[0] for entry in entries]  # type: ignore[index,union-attr]
    if len(ids) != count:
        raise BenchFailed(f"redis returned {len(ids)} of {count} messages")
    redis.run_commands([[b"XACK", _KEY, _GROUP, *ids], [b"XDEL", _KEY, *ids]])  # type: ignore[list-item]
    return took


@contextlib.contextmanager
def _run_server(folder: Path) -> Iterator[Path]:
    data = folder / "redis"
    data.mkdir(mode=0o700)
    path = data / "s"
    options = ["--port", "0", "--unixsocket", str(path), "--dir", str(data), "--save", ""]
    options += ["--appendonly", "yes", "--appendfsync", "always"]
    process = subprocess.Popen(["redis-server", *options], stdout=subprocess.DEVNULL)
    try:
        _wait_for_socket(path)
        yield path
    finally:
        process.terminate()
        process.wait(timeout=_TIMEOUT_SECS)


def _wait_for_socket(path: Path) -> None:
    deadline = time.monotonic() + _TIMEOUT_SECS
    while not path.exists():
        if time.monotonic() > deadline:
            raise BenchFailed("redis-server did not start")
        time.sleep(0.02)


class _RedisConnection:
    """A minimal client of the Redis protocol, for pipelines."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(_TIMEOUT_SECS)
        self._socket.connect(str(path))
        self._file: BufferedReader = self._socket.makefile("rb")

    def __enter__(self) -> "_RedisConnection":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._socket.close()

    def run_commands(self, commands: list[list[bytes]]) -> list[RedisReply]:
        self._socket.sendall(b"".join(map(_encode_command, commands)))
        return [self._read_reply() for _ in commands]

    def server_version(self) -> str:
        (info,) = self.run_commands([[b"INFO", b"server"]])
        assert isinstance(info, bytes)
        return info.decode().partition("redis_version:")[2].split()[0]

    def _read_reply(self) -> RedisReply:
        kind, rest = (line := self._file.readline())[:1], line[1:-2]
        if kind == b"-" or not line:
            raise BenchFailed(f"redis: {rest.decode() or 'connection lost'}")
        if kind == b"+":
            return rest
        if kind == b":":
            return int(rest)
        length = int(rest)
        if length < 0:
            return None
        if kind == b"$":
            return self._file.read(length + 2)[:-2]
        return [self._read_reply() for _ in range(length)]


def _encode_command(command: list[bytes]) -> bytes:
    parts = (b"$%d\r\n%s\r\n" % (len(part), part) for part in command)
    return b"*%d\r\n%s" % (len(command), b"".join(parts))
