"""What one JVM has loaded, for the next one to start from: half of a short job is loading classes.

A JVM that is asked to writes all its classes to a file at its end (about 190 MB, which takes it ten
seconds); others map that file instead of reading jars. It lies beside the Java it was made by, and
is of no use to another Java or another Spark.
"""

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from gatepost.pipeline.java import java_home, started_by

# Whatever is wrong with the file, a JVM does without it.
_QUIET = "-Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
_NAME = "classes-*.jsa"


class SharedClasses:
    """The file of this Java and this Spark: `options` use it where it is, or have it made."""

    def __init__(self, home: Path, *, make: bool = False) -> None:
        self._make = make
        self._file = home / _NAME.replace("*", _digest(home))
        self._fresh = home / f".{self._file.name}.{os.getpid()}"

    @property
    def options(self) -> str:
        if self._make:
            return f"-XX:ArchiveClassesAtExit={self._fresh} {_QUIET}"
        return f"-XX:SharedArchiveFile={self._file} {_QUIET}" if self._file.exists() else ""

    def ended(self, well: bool) -> None:
        """Keep what the JVM wrote, if it ended by itself; only the newest is of use."""
        if not self._make:
            return
        if well and self._fresh.exists():
            for old in self._file.parent.glob(_NAME):
                old.unlink(missing_ok=True)
            self._fresh.replace(self._file)
        for left in self._file.parent.glob(f".{_NAME}.*"):
            if left == self._fresh or not _is_alive(left.suffix[1:]):
                left.unlink(missing_ok=True)


def is_prepared() -> bool:
    return bool(SharedClasses(java_home()).options)


def _digest(home: Path) -> str:
    import pyspark

    java = started_by(home).resolve()
    parts = (java, java.stat().st_mtime_ns, pyspark.__file__, pyspark.__version__)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _is_alive(pid: str) -> bool:
    with suppress(ProcessLookupError, ValueError):
        os.kill(int(pid), 0)
        return True
    return False
