"""A file has its old content or its new one, and one process at a time holds a lock."""

import os
import stat
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from gatepost import files
from gatepost.files import (
    hold_file_lock,
    lock_file,
    open_replacement,
    publish_file,
    write_file_atomically,
)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


def test_a_replaced_file_is_private_and_leaves_no_other_file(path: Path) -> None:
    path.write_text("old")
    path.chmod(0o644)
    write_file_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert mode(path) == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_a_mode_is_subject_to_the_umask(path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_file_atomically(path, b"", 0o666)
    finally:
        os.umask(before)
    assert mode(path) == 0o640


def test_a_reader_of_the_old_file_reads_it_to_its_end(path: Path) -> None:
    write_file_atomically(path, b"old")
    with path.open("rb") as reader:
        write_file_atomically(path, b"new")
        assert reader.read() == b"old"


def test_an_error_leaves_the_old_content_and_no_other_file(path: Path) -> None:
    write_file_atomically(path, b"old")
    with pytest.raises(ConnectionResetError), open_replacement(path) as file:
        file.write(b"half of the")
        raise ConnectionResetError
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]


def test_a_link_in_place_of_the_temporary_file_is_not_followed(path: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("untouched")
    (tmp_path / f".file.{os.getpid()}.tmp").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic links"):
        write_file_atomically(path, b"new")
    assert (tmp_path / "victim").read_text() == "untouched"


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    fsync, replace = os.fsync, os.replace

    def record_sync(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        found.append("sync folder" if is_folder else "sync file")
        fsync(descriptor)

    def record_rename(*names: Any, **folders: Any) -> None:
        found.append("rename")
        replace(*names, **folders)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(os, "replace", record_rename)
    return found


def test_content_is_synced_before_its_name_and_the_folder_after(
    path: Path, steps: list[str]
) -> None:
    write_file_atomically(path, b"new")
    assert steps == ["sync file", "rename", "sync folder"]


def test_a_published_file_is_synced_before_its_name_too(path: Path, steps: list[str]) -> None:
    temporary = path.with_name("other")
    temporary.write_bytes(b"new")
    publish_file(temporary, path)
    assert path.read_bytes() == b"new"
    assert steps == ["sync file", "rename", "sync folder"]


def write_until_line(path: Path, line: int) -> bool:
    """Write in a child that dies at the n-th line of the module; return whether it finished."""

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal line
        if frame.f_code.co_filename != files.__file__:
            return None
        line -= event == "line"
        return os._exit(1) if line < 0 else trace

    if child := os.fork():
        return os.waitpid(child, 0)[1] == 0
    sys.settrace(trace)
    write_file_atomically(path, b"new")
    os._exit(0)


def test_a_crash_at_any_line_leaves_the_old_content_or_the_new(path: Path) -> None:
    outcomes, line, done = set(), 0, False
    while not done:
        write_file_atomically(path, b"old")
        done = write_until_line(path, line)
        outcomes.add(path.read_bytes())
        line += 1
    assert outcomes == {b"old", b"new"}
    assert line > 10


def test_a_lock_is_held_until_its_file_is_closed(path: Path) -> None:
    with lock_file(path), pytest.raises(BlockingIOError):
        lock_file(path)
    lock_file(path).close()
    assert mode(path) == 0o600


def test_waiting_for_a_lock_ends_with_the_given_error(path: Path) -> None:
    with (
        hold_file_lock(path, 0.0, TimeoutError("never")),
        pytest.raises(TimeoutError, match="the other"),
        hold_file_lock(path, 0.15, TimeoutError("the other")),
    ):
        pass
    with hold_file_lock(path, 0.0, TimeoutError("never")):
        pass


def test_a_killed_holder_releases_its_lock(path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from gatepost.files import lock_file\n"
        "held = lock_file(Path(sys.argv[1])); print(flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(BlockingIOError):
            lock_file(path)
        holder.kill()
    lock_file(path).close()
