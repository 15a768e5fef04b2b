"""The folder of a session, and the folder that all of them are in."""

import errno
import fcntl
import os
import struct
from pathlib import Path

import pytest

from gatepost.tasks.agent_definition import AgentDefinition
from gatepost.tasks.runtimes.session_folder import make_session_folder, remove_secrets
from gatepost.tasks.runtimes.session_user import SessionUser
from gatepost.tasks.session_runtime import SessionSpec

_GET_FLAGS, _TOP_FOLDER = 0x80086601, 0x00020000


def make_folder(root: Path) -> Path:
    spec = SessionSpec(
        name="one",
        folder=root / "one",
        definition=AgentDefinition(name="a", command=("true",)),
        environment={},
        files={"task.json": b"{}"},
        secrets={"token": b"secret", "key": b"other"},
    )
    make_session_folder(spec, SessionUser(os.geteuid(), os.getegid()))
    return spec.folder


def read_flags(folder: Path) -> int | None:
    """The attributes of a folder; None if its file system has none."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        (flags,) = struct.unpack("l", fcntl.ioctl(descriptor, _GET_FLAGS, bytes(8)))
        return int(flags)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def test_the_folder_of_all_sessions_is_the_top_of_unrelated_folders(tmp_path: Path) -> None:
    make_folder(tmp_path / "sessions")
    flags = read_flags(tmp_path / "sessions")
    # Of the file systems with attributes, those of ext4 alone include extents (0x80000).
    if flags is not None and flags & 0x80000:
        assert flags & _TOP_FOLDER


def test_a_file_system_without_attributes_has_sessions_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOTTY, "no such attribute")

    monkeypatch.setattr(fcntl, "ioctl", refuse)
    folder = make_folder(tmp_path / "sessions")
    assert (folder / "task.json").read_bytes() == b"{}"


def test_a_folder_among_the_secrets_keeps_none_of_them(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "sessions")
    (folder / "secrets" / "0" / "1").mkdir(parents=True)
    remove_secrets(folder)
    remove_secrets(folder)
    assert list((folder / "secrets").iterdir()) == []
