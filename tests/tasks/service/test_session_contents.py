"""A session leaves whatever it likes in place of its result."""

import asyncio
import os
import socket
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from gatepost.errors import InvalidRequest, PayloadTooLarge
from gatepost.tasks.service import json_contents
from gatepost.tasks.service.session_contents import SessionContents
from gatepost.tasks.task_table import TaskPayload
from gatepost.testing import ManualClock
from tests.gateway.tools import opened

pytestmark = pytest.mark.anyio


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def make_sparse_file(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


def open_paths() -> list[str]:
    found = []
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(str(each.readlink()))
    return found


TRICKS: dict[str, tuple[Callable[[Path], object], type[Exception]]] = {
    "a folder": (Path.mkdir, InvalidRequest),
    "a pipe": (os.mkfifo, InvalidRequest),
    "a socket": (make_socket, InvalidRequest),
    "a link to a secret": (lambda path: path.symlink_to("/etc/passwd"), InvalidRequest),
    "a link to a device": (lambda path: path.symlink_to("/dev/zero"), InvalidRequest),
    "a link to itself": (lambda path: path.symlink_to(path), InvalidRequest),
    "a file without end": (make_sparse_file, PayloadTooLarge),
    "no JSON": (lambda path: path.write_bytes(b'{"a":'), InvalidRequest),
    "nothing": (Path.touch, InvalidRequest),
}


async def test_nothing_but_a_file_with_json_is_a_result(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path / "g", clock) as operations:
        contents = SessionContents(operations.core)
        work = operations.core.state.sessions / "s" / "work"
        work.mkdir(parents=True)
        # Sockets have short names.
        monkeypatch.chdir(work)
        (work / "result.json").write_bytes(b'{"fine": true}')
        assert isinstance(await contents.read_result("s", "t"), TaskPayload)
        (work / "result.json").unlink()
        for name, (play_trick, error) in TRICKS.items():
            play_trick(Path("result.json"))
            assert isinstance(await contents.read_result("s", "t"), error), name
            (work / "result.json").rename(work / name)
        # Each folder in place of a result cost the gateway a descriptor.
        assert not [path for path in open_paths() if path.startswith(f"{work}/")]
        assert await contents.read_result("s", "t") is None


@pytest.mark.parametrize(
    ("end", "is_json"),
    [
        (b"1]", True),
        (b"1", False),
        (b"1]]", False),
        (b"\xff]", False),
        (b"[" * 255 + b"]" * 256, True),
        (b"[" * 256 + b"]" * 257, False),
    ],
)
async def test_a_large_result_is_decoded_outside_of_this_process(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, end: bytes, is_json: bool
) -> None:
    def refuse(content: bytes) -> None:
        raise AssertionError("no other thread runs while this one decodes")

    monkeypatch.setattr(json_contents, "check_json_payload", refuse)
    async with opened(tmp_path / "g", clock) as operations:
        contents = SessionContents(operations.core)
        work = operations.core.state.sessions / "s" / "work"
        work.mkdir(parents=True)
        (work / "result.json").write_bytes(b"[" + b"1," * (3 << 20) + end)
        found = await contents.read_result("s", "t")
        assert isinstance(found, TaskPayload if is_json else InvalidRequest)
        assert is_json or "its result file cannot be used" in str(found)


async def test_others_go_on_while_a_large_result_is_judged(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with opened(tmp_path / "g", clock) as operations:
        contents = SessionContents(operations.core)
        work = operations.core.state.sessions / "s" / "work"
        work.mkdir(parents=True)
        (work / "result.json").write_bytes(b"[" + b"1," * (30 << 20) + b"1]")
        judging = asyncio.ensure_future(contents.read_result("s", "t"))
        pauses = []
        while not judging.done():
            began = time.monotonic()
            await asyncio.sleep(0.001)
            pauses.append(time.monotonic() - began)
        assert isinstance(judging.result(), TaskPayload)
        print(f"the longest pause of {len(pauses)} is {max(pauses) * 1000:.0f} ms")
        assert statistics.median(pauses) < 0.05
        # Other processes may take the processor now and then, but not each time.
        assert sorted(pauses)[-3] < 0.25
