"""The folder of a session: its files, its secrets, and the place where it works."""

import contextlib
import fcntl
import os
import shutil
import sys
from pathlib import Path

from gatepost.hub.runtimes.runtime import SessionSpec
from gatepost.hub.runtimes.session_supervisor import SECRETS_FOLDER, WORK_FOLDER

_GET_FLAGS, _SET_FLAGS, _TOP_FOLDER = 0x80086601, 0x40086602, 0x00020000


def make_session_folder(spec: SessionSpec) -> None:
    """Make the folder of a session that has none yet, readable by this user alone."""
    folder = str(spec.folder)
    _make_root(os.path.dirname(folder))  # noqa: PTH120
    for path in (folder, f"{folder}/{WORK_FOLDER}", f"{folder}/{SECRETS_FOLDER}"):
        os.mkdir(path, 0o700)  # noqa: PTH102
    for name, content in spec.files.items():
        write_private_file(f"{folder}/{name}", content)
    for name, content in spec.secrets.items():
        write_private_file(f"{folder}/{SECRETS_FOLDER}/{name}", content)


def remove_secrets(folder: Path) -> None:
    """Remove the secrets of a session that has ended, and leave their folder."""
    secrets = f"{folder}/{SECRETS_FOLDER}"
    try:
        # The session may have put a link to another folder there.
        names = [] if os.path.islink(secrets) else os.listdir(secrets)  # noqa: PTH114, PTH208
    except OSError:
        return
    for name in names:
        try:
            os.unlink(f"{secrets}/{name}")  # noqa: PTH108
        except OSError:
            # The session may have made a folder there.
            shutil.rmtree(f"{secrets}/{name}", ignore_errors=True)


def _make_root(root: str) -> None:
    """Make the folder that all folders of sessions are in, if there is none.

    It is marked as the top of unrelated folders (`chattr +T`), where the file system knows that.
    ext4 then spreads the folders inside; otherwise it looks for an inode among all those that other
    sessions have freed a moment ago.
    """
    try:
        os.mkdir(root, 0o700)  # noqa: PTH102
    except FileExistsError:
        return
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            flags = bytearray(8)
            fcntl.ioctl(descriptor, _GET_FLAGS, flags)
            known = int.from_bytes(flags, sys.byteorder)
            fcntl.ioctl(descriptor, _SET_FLAGS, (known | _TOP_FOLDER).to_bytes(8, sys.byteorder))
    finally:
        os.close(descriptor)


def write_private_file(path: str, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
    finally:
        os.close(descriptor)
