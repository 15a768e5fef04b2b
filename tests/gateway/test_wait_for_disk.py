"""A gateway that is started on a full disk."""

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gatepost.gateway import wait_for_disk
from gatepost.testing import GatewayProcess
from tests.waiting import wait_until


@pytest.mark.anyio
async def test_a_full_disk_is_said_once_and_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[int] = []

    def allocate(descriptor: int, offset: int, size: int) -> None:
        tries.append(size)
        if len(tries) <= 3:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", allocate)
    monkeypatch.setattr(wait_for_disk, "_RETRY_SECS", 0.0)
    await wait_for_disk.wait_for_space(tmp_path / "state")
    assert len(tries) == 4
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert list((tmp_path / "state").iterdir()) == [], "the probe leaves nothing behind"


@pytest.mark.anyio
async def test_another_error_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"exists|Not a directory"):
        await wait_for_disk.wait_for_space(tmp_path / "file")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "gatepost-test", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("cannot mount a small file system here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_gateway_starts_on_a_full_disk_once_there_is_space(
    small_disk: Path, tmp_path: Path
) -> None:
    ballast = small_disk / "ballast"
    with ballast.open("wb") as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(65_536))
            file.flush()
    gateway = GatewayProcess(small_disk / "state")
    gateway.log = tmp_path / "log"
    gateway.spawn()
    try:
        wait_until(lambda: "is full" in gateway.log.read_text(), 20)
        ballast.unlink()
        gateway.wait_ready()
        assert "has space again" in gateway.log.read_text()
        assert gateway.log.read_text().count("is full") == 1
    finally:
        gateway.kill9()
