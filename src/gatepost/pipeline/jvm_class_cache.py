"""A cache of loaded JVM classes, because a short job spends half its time loading them.

On request a JVM writes all its classes to a file when it ends (about 190 MB, ten seconds). Later
JVMs map that file instead of reading jars. The file lies in the JAVA_HOME that made it, and works
for that Java and that Spark only.
"""

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from gatepost.files import publish_file
from gatepost.pipeline.java import java_home, shim_target

# A JVM starts without the file if anything is wrong with it.
_QUIET_OPTIONS = "-Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
_FILE_PATTERN = "classes-*.jsa"


class JvmClassCache:
    """The cache file of this Java and this Spark.

    `jvm_options` make a JVM use the file if it exists, or record it with `make`.
    """

    def __init__(self, home: Path, *, make: bool = False) -> None:
        self._record = make
        self._file = home / _FILE_PATTERN.replace("*", _cache_digest(home))
        self._fresh = home / f".{self._file.name}.{os.getpid()}"

    @property
    def jvm_options(self) -> str:
        if self._record:
            return f"-XX:ArchiveClassesAtExit={self._fresh} {_QUIET_OPTIONS}"
        return f"-XX:SharedArchiveFile={self._file} {_QUIET_OPTIONS}" if self._file.exists() else ""

    def finish_recording(self, well: bool) -> None:
        """Keep the file that the JVM wrote if it ended `well`; only the newest file is useful."""
        if not self._record:
            return
        if well and self._fresh.exists():
            for old in self._file.parent.glob(_FILE_PATTERN):
                old.unlink(missing_ok=True)
            publish_file(self._fresh, self._file)
        for leftover in self._file.parent.glob(f".{_FILE_PATTERN}.*"):
            if leftover == self._fresh or not _is_process_alive(leftover.suffix[1:]):
                leftover.unlink(missing_ok=True)


def has_class_cache() -> bool:
    """Whether JVMs of this Java and this Spark start from a cache file."""
    return bool(JvmClassCache(java_home()).jvm_options)


def _cache_digest(home: Path) -> str:
    import pyspark

    java = shim_target(home).resolve()
    parts = (java, java.stat().st_mtime_ns, pyspark.__file__, pyspark.__version__)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _is_process_alive(pid: str) -> bool:
    with suppress(ProcessLookupError, ValueError):
        os.kill(int(pid), 0)
        return True
    return False
