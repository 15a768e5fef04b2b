"""The peer is really run."""

from pathlib import Path

import pytest

from gatepost.bench.redis import is_redis_installed, measure_redis
from gatepost.errors import BenchFailed


@pytest.mark.skipif(
    not is_redis_installed(), reason="redis-server or its Python client is not installed"
)
def test_redis_streams_does_the_same_work(tmp_path: Path) -> None:
    peer = measure_redis(tmp_path, messages=200, outstanding=50, size=64, singles=10)
    assert peer.per_sec > 0
    assert 0 < peer.p50_ms <= peer.p99_ms
    assert peer.version[0].isdigit()
    # Everything was written to the log that is synced before each answer.
    logged = b"".join(f.read_bytes() for f in (tmp_path / "redis").rglob("*.aof"))
    assert logged.count(b"XADD") == 210


def test_a_server_that_does_not_start_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "bin" / "redis-server"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(fake.parent))
    monkeypatch.setattr("gatepost.bench.redis._TIMEOUT_SECS", 0.3)
    with pytest.raises(BenchFailed, match="did not start"):
        measure_redis(tmp_path, messages=1, outstanding=1, size=1, singles=1)
