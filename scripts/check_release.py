"""What scripts/release checks: the files of the archives, and that an installation works.

`files WHEEL SDIST` needs nothing; `smoke EXTRA GATEPOST` runs in an environment that has the wheel
and this extra, and nothing else.
"""

import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

_SECRETS = re.compile(r"(^|/)(\.env|token|node\.key|.*\.pem|.*\.sqlite)$")
_WAIT = "60"


def check_files(wheel: Path, sdist: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = next(name for name in names if name.endswith("/METADATA"))
        text = archive.read(metadata).decode()
    require(any(name.endswith("licenses/LICENSE") for name in names), "the wheel has no licence")
    require("License-Expression: Apache-2.0" in text, "the metadata names no licence")
    require("gatepost/py.typed" in names, "the wheel has no py.typed")
    outside = [name for name in names if not name.startswith(("gatepost/", "gatepost-"))]
    require(not outside, f"the wheel has files outside of its package: {outside[:5]}")
    with tarfile.open(sdist) as source:
        members = source.getnames()
    for wanted in ("LICENSE", "README.md", "CHANGELOG.md", "constraints.txt", "scripts/release"):
        require(any(name.endswith(f"/{wanted}") for name in members), f"the sdist lacks {wanted}")
    leaked = [name for name in (*names, *members) if _SECRETS.search(name)]
    require(not leaked, f"these must not be published: {leaked[:5]}")
    check_vendored(names)


def check_vendored(names: list[str]) -> None:
    """A folder with code of others holds its licences beside it."""
    folders = {name.rpartition("/")[0] for name in names if "/vendor/" in name}
    for folder in folders:
        beside = [name for name in names if name.startswith(folder) and "LICENSE" in name.upper()]
        require(bool(beside), f"{folder} has files of others and no licence")


def try_installation(extra: str, command: str) -> None:
    """Send a message through a gateway; then do what the extra is for, or see it asked for."""
    with tempfile.TemporaryDirectory(prefix="gp") as folder:
        home = Path(folder) / "state"
        env = {"PATH": os.environ["PATH"], "HOME": folder, "GATEPOST_HOME": str(home)}
        env["GATEPOST_LISTEN__PORT"] = "0"

        def run(*arguments: str, code: int = 0) -> str:
            ran = subprocess.run(
                [command, *arguments], env=env, capture_output=True, text=True, check=False
            )
            said = ran.stdout + ran.stderr
            require(ran.returncode == code, f"gatepost {' '.join(arguments)}: {said}")
            return said

        run("init")
        run("doctor")
        run("up", "--detach", "--timeout", _WAIT)
        try:
            run("agent", "add", "bob")
            run("send", "bob", "hello")
            taken = json.loads(run("inbox", "bob", "--take", "--json"))
            require("hello" in json.dumps(taken), f"no mail: {taken}")
            run("doctor")
        finally:
            run("down")
        _try_extra(extra, Path(folder), run)


def _try_extra(extra: str, folder: Path, run: "object") -> None:
    assert callable(run)
    rules = folder / "policy.cedar"
    rules.write_text("permit(principal, action, resource);")
    has_hub = extra in ("hub", "all")
    said = run("policy", "check", str(rules), code=0 if has_hub else 1)
    require(has_hub or "pip install 'gatepost[hub]'" in said, said)
    if extra in ("pipeline", "all"):
        archive, tables = str(folder / "archive"), str(folder / "tables")
        run("pipeline", "synth", archive, "--events", "200")
        run("pipeline", "run", "--archive", archive, "--tables", tables)
    else:
        said = run("pipeline", "run", "--archive", "x", "--tables", "y", code=2)
        require("pip install 'gatepost[pipeline]'" in said, said)


def require(is_right: bool, problem: str) -> None:
    if not is_right:
        sys.exit(f"release: {problem}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["files", wheel, sdist]:
            check_files(Path(wheel), Path(sdist))
        case ["smoke", extra, command]:
            try_installation(extra, command)
        case _:
            sys.exit(__doc__)
