"""The folder of a session: its files, its secrets, and the place where it works."""

import os
import shutil
from pathlib import Path

from gatepost.hub.runtimes.runtime import SessionSpec
from gatepost.hub.runtimes.session_supervisor import SECRETS_FOLDER, WORK_FOLDER


def make_session_folder(spec: SessionSpec) -> None:
    """Make the folder of a session that has none yet, readable by this user alone."""
    spec.folder.parent.mkdir(mode=0o700, exist_ok=True)
    folder = str(spec.folder)
    for path in (folder, f"{folder}/{WORK_FOLDER}", f"{folder}/{SECRETS_FOLDER}"):
        os.mkdir(path, 0o700)  # noqa: PTH102
    for name, content in spec.files.items():
        write_private_file(f"{folder}/{name}", content)
    for name, content in spec.secrets.items():
        write_private_file(f"{folder}/{SECRETS_FOLDER}/{name}", content)


def remove_secrets(folder: Path) -> None:
    secrets = f"{folder}/{SECRETS_FOLDER}"
    if os.path.lexists(secrets):
        shutil.rmtree(secrets, ignore_errors=True)


def write_private_file(path: str, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
    finally:
        os.close(descriptor)
