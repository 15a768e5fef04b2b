"""A cache of loaded JVM classes: a short job spends half of its time on loading classes.

On request a JVM writes all its classes to a file when it ends (about 190 MB, ten seconds). Later
JVMs map that file instead of reading jars. The file lies in the JAVA_HOME that made it, and works
for that Java and that Spark only.
"""

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from gatepost.pipeline.java import java_home, started_by

# A JVM starts without the file if anything is wrong with it.
_QUIET = "-Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
_NAME = "classes-*.jsa"


class SharedClasses:
    """The cache file of this Java and this Spark.

    `jvm_options` make a JVM use the file if it exists, or record it with `make`.
    """

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
        """Keep the file the JVM wrote if it ended `well`; only the newest file is of use."""
        if not self._make:
            return
        if well and self._fresh.exists():
            for old in self._file.parent.glob(_NAME):
                old.unlink(missing_ok=True)
            self._fresh.replace(self._file)
        for leftover in self._file.parent.glob(f".{_NAME}.*"):
            if leftover == self._fresh or not _is_alive(leftover.suffix[1:]):
                leftover.unlink(missing_ok=True)


def is_prepared() -> bool:
    """Whether JVMs of this Java and this Spark start from a cache file."""
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
