"""The folder of a session: its files, its secrets, and the place where it works."""

import contextlib
import fcntl
import os
import shutil
import sys
from pathlib import Path

from gatepost.tasks.runtimes.session_supervisor import SECRETS_FOLDER, WORK_FOLDER
from gatepost.tasks.runtimes.session_user import SessionUser
from gatepost.tasks.session_runtime import SessionSpec

_GET_FLAGS, _SET_FLAGS, _TOP_FOLDER = 0x80086601, 0x40086602, 0x00020000


def make_session_folder(spec: SessionSpec, user: SessionUser) -> None:
    """Make the folder of a new session, which only `user` and this user can enter.

    `user` can read its files, and write in the work folder only.
    """
    folder = str(spec.folder)
    other = user if user.uid != os.geteuid() else None
    _make_root(os.path.dirname(folder), is_open=other is not None)  # noqa: PTH120
    _make_folder(folder, other, 0, 0o710)
    for path in (f"{folder}/{WORK_FOLDER}", f"{folder}/{SECRETS_FOLDER}"):
        _make_folder(path, other, user.uid, 0o700)
    for name, content in spec.files.items():
        write_private_file(f"{folder}/{name}", content, other)
    for name, content in spec.secrets.items():
        write_private_file(f"{folder}/{SECRETS_FOLDER}/{name}", content, other)


def _make_folder(path: str, other: SessionUser | None, owner: int, mode: int) -> None:
    os.mkdir(path, 0o700)  # noqa: PTH102
    if other is not None:
        os.chown(path, owner, other.gid)
        os.chmod(path, mode)  # noqa: PTH101


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


def _make_root(root: str, *, is_open: bool) -> None:
    """Make the parent folder of all session folders if it is missing.

    If it is open, other users can enter it, and not list it.

    It is marked as the top of unrelated folders (`chattr +T`), where the file system knows that.
    ext4 then spreads the folders inside; otherwise it looks for an inode among all those that other
    sessions have freed a moment ago.
    """
    try:
        os.mkdir(root, 0o700)  # noqa: PTH102
    except FileExistsError:
        if is_open and not os.stat(root).st_mode & 0o001:  # noqa: PTH116
            os.chmod(root, 0o711)  # noqa: PTH101
        return
    if is_open:
        os.chmod(root, 0o711)  # noqa: PTH101
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            flags = bytearray(8)
            fcntl.ioctl(descriptor, _GET_FLAGS, flags)
            known = int.from_bytes(flags, sys.byteorder)
            fcntl.ioctl(descriptor, _SET_FLAGS, (known | _TOP_FOLDER).to_bytes(8, sys.byteorder))
    finally:
        os.close(descriptor)


def write_private_file(path: str, content: bytes, owner: SessionUser | None = None) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        if owner is not None:
            os.fchown(descriptor, owner.uid, owner.gid)
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
    finally:
        os.close(descriptor)
