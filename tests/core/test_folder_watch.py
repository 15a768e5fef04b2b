"""Being told of new files."""

import asyncio
import os
from pathlib import Path

import pytest

from gatepost.core import folder_watch
from gatepost.core.folder_watch import watch_folder
from tests.waiting import async_assert_stays_true, async_wait_until

pytestmark = pytest.mark.anyio


async def test_a_file_that_is_moved_in_or_written_is_told_of(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    changed = asyncio.Event()
    descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    async with watch_folder(folder, changed.set):
        assert not changed.is_set()
        (folder / "written").write_text("x")
        await asyncio.wait_for(changed.wait(), 5)
        (tmp_path / "moved").write_text("x")
        # The first file may be told of twice: created, and written.
        await asyncio.sleep(0.05)
        changed.clear()
        (tmp_path / "moved").rename(folder / "moved")
        await asyncio.wait_for(changed.wait(), 5)
    assert len(os.listdir("/proc/self/fd")) == descriptors  # noqa: PTH208


async def test_where_the_system_cannot_tell_it_is_looked_at_regularly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_watch, "_LOOK_EVERY", 0.01)
    calls = 0

    def count() -> None:
        nonlocal calls
        calls += 1

    async with watch_folder(tmp_path / "missing", count):
        await async_wait_until(lambda: calls >= 3)
    seen = calls
    await async_assert_stays_true(lambda: calls == seen, 0.05)
