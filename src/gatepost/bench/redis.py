"""Measures Redis Streams on the same disk, for comparison with the mailbox.

The server fsyncs before it answers (`appendfsync always`). One process adds messages, reads them as
a consumer group and acks them, in pipelines as deep as the outstanding messages. So the client pays
one round trip for many messages, less than a client that awaits each message.
"""

import contextlib
import importlib.util
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from gatepost.bench.fsync import percentile
from gatepost.errors import BenchFailed

if TYPE_CHECKING:
    from redis import Redis

_TIMEOUT_SECS = 10.0
_KEY, _GROUP, _CONSUMER = "bench", "group", "me"


class RedisResult(Struct, frozen=True):
    """Figures of Redis Streams; p50 and p99 are from add to read, one message at a time."""

    version: str
    per_sec: float
    p50_ms: float
    p99_ms: float


def is_redis_installed() -> bool:
    """Whether both the server and its Python client are installed."""
    has_client = importlib.util.find_spec("redis") is not None
    return has_client and shutil.which("redis-server") is not None


def measure_redis(
    folder: Path, *, messages: int, outstanding: int, size: int, singles: int
) -> RedisResult:
    """Start a server in `folder`, measure it, and stop it."""
    with _run_server(folder) as path, _open_client(path) as redis:
        redis.xgroup_create(_KEY, _GROUP, id="0", mkstream=True)
        payload = b"x" * size
        started = time.perf_counter()
        for _ in range(messages // outstanding):
            _run_round(redis, payload, outstanding)
        per_sec = messages // outstanding * outstanding / (time.perf_counter() - started)
        laps = sorted(_run_round(redis, payload, 1) * 1000 for _ in range(singles))
        version = redis.info("server")["redis_version"]
        return RedisResult(str(version), per_sec, percentile(laps, 50), percentile(laps, 99))


def _run_round(redis: "Redis", payload: bytes, count: int) -> float:
    """Add, read and ack `count` messages; returns the seconds for add and read."""
    started = time.perf_counter()
    adding = redis.pipeline(transaction=False)
    for _ in range(count):
        adding.xadd(_KEY, {"m": payload})
    adding.execute()
    streams: Any = redis.xreadgroup(_GROUP, _CONSUMER, {_KEY: ">"}, count=count)
    took = time.perf_counter() - started
    ids = [id for _, entries in streams for id, _ in entries]
    if len(ids) != count:
        raise BenchFailed(f"redis returned {len(ids)} of {count} messages")
    ending = redis.pipeline(transaction=False)
    ending.xack(_KEY, _GROUP, *ids)
    ending.xdel(_KEY, *ids)
    ending.execute()
    return took


@contextlib.contextmanager
def _open_client(path: Path) -> "Iterator[Redis]":
    """Connect to the server's socket; its errors fail the benchmark."""
    from redis import Redis, RedisError

    # Every server speaks version 2 of the protocol.
    client = Redis(unix_socket_path=str(path), socket_timeout=_TIMEOUT_SECS, protocol=2)
    try:
        yield client
    except RedisError as error:
        raise BenchFailed(f"redis: {error}") from None
    finally:
        client.close()


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
