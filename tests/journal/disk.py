"""Disks that misbehave on command."""

from typing import Any

import apsw


class Disk(apsw.VFS):
    """A file system whose fsync can be made to fail. One per name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.broken = False
        self.syncs = 0
        super().__init__(name, "")

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        return File(self, name, flags)


class File(apsw.VFSFile):
    def __init__(self, disk: Disk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        super().__init__("", name, flags)

    def xSync(self, flags: int) -> None:
        self._disk.syncs += 1
        if self._disk.broken:
            raise apsw.IOError("the disk did not sync")
        super().xSync(flags)
