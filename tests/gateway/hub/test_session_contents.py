"""A session leaves whatever it likes in place of its result."""

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from gatepost.errors import InvalidRequest, PayloadTooLarge
from gatepost.gateway.hub.session_contents import SessionContents
from gatepost.hub.tasks import TaskPayload
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
