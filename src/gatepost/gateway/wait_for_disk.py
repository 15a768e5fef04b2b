"""Waits for space on the disk of the state directory before a gateway starts on it."""

import asyncio
import errno
import logging
import os
from pathlib import Path

from gatepost.core.state_dir import StateDir

log = logging.getLogger(__name__)

# Opening an existing journal or creating a new one takes less.
_NEEDED_BYTES = 1024 * 1024
_RETRY_SECS = 1.0
_FULL = (errno.ENOSPC, errno.EDQUOT)


async def wait_for_space(state_dir: Path) -> None:
    """Return once the state directory can be written; report a full disk once."""
    has_waited = False
    while not _try_reserve(state_dir):
        if not has_waited:
            log.error("the disk of %s is full: the gateway starts when there is space", state_dir)
        has_waited = True
        await asyncio.sleep(_RETRY_SECS)
    if has_waited:
        log.warning("the disk of %s has space again", state_dir)


def _try_reserve(state_dir: Path) -> bool:
    try:
        StateDir(state_dir).create_folder()
        _reserve_space(state_dir / f".space.{os.getpid()}")
    except OSError as error:
        if error.errno in _FULL:
            return False
        raise
    return True


def _reserve_space(file: Path) -> None:
    """Allocate the space in an unlinked file, and free it again."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        file.unlink()
        os.posix_fallocate(descriptor, 0, _NEEDED_BYTES)
    finally:
        os.close(descriptor)
