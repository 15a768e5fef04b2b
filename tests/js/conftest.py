import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CACHE = HERE.parent.parent / ".cache" / "js"


@pytest.fixture(scope="session")
def installed() -> Path:
    """The scripts beside their packages, which are fetched once."""
    if not shutil.which("node") or not shutil.which("npm"):
        pytest.skip("node and npm are not installed, so no JavaScript client was tried")
    CACHE.mkdir(parents=True, exist_ok=True)
    wanted = (HERE / "package.json").read_bytes()
    for script in HERE.glob("*.mjs"):
        shutil.copy(script, CACHE)
    done = CACHE / "installed.json"
    if not done.exists() or done.read_bytes() != wanted:
        (CACHE / "package.json").write_bytes(wanted)
        _install()
        done.write_bytes(wanted)
    return CACHE


def _install() -> None:
    command = ["npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--omit=optional"]
    result = subprocess.run(command, cwd=CACHE, capture_output=True, timeout=110, check=False)
    if result.returncode:
        pytest.skip(f"the packages cannot be fetched: {result.stderr.decode()[-300:]}")
