"""What is generated in clients/typescript is what its sources give."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.typescript.conftest import ROOT

CLIENT = ROOT / "clients" / "typescript"
PROGRAM = """
import { connect, type Message, type Sent } from "./gatepost.js";
const client = await connect("alice");
const sent: Sent = await client.send("bob", { n: 1 }, { wait: "processed" });
const outcome: string | null | undefined = sent.outcome;
await client.serve({ onMessage: (message: Message) => ({ from: message.from, outcome }) });
"""
MISTAKES = {
    "TS2353": 'await client.send("bob", 1, { wait: "processed", tiemout: 3 });',
    "TS2322": 'const state: number = (await client.send("bob", 1)).state;',
    "TS2345": 'await client.perform({ op: "dequeue", limit: 1 });',
}


def test_the_types_of_the_wire_are_those_of_the_openapi_document() -> None:
    command = [sys.executable, "scripts/generate_client_types.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def compiler() -> Path:
    """TypeScript's compiler, which `scripts/typescript` fetches once."""
    if not shutil.which("npm"):
        pytest.skip("npm is not installed, so nothing was compiled")
    return ROOT / "scripts" / "typescript"


def _compile(compiler: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(
        [compiler, *arguments], capture_output=True, text=True, timeout=110, check=False
    )
    if "npm" in done.stderr and done.returncode:
        pytest.skip(f"the compiler cannot be fetched: {done.stderr[-300:]}")
    return done


def test_the_javascript_is_made_from_the_typescript(compiler: Path, tmp_path: Path) -> None:
    done = _compile(compiler, str(tmp_path))
    assert done.returncode == 0, done.stdout
    for name in ("gatepost.js", "gatepost.d.ts"):
        made = (tmp_path / name).read_text()
        assert made == (CLIENT / name).read_text(), f"{name} is stale: run scripts/typescript"


def test_a_program_that_uses_it_wrongly_does_not_compile(compiler: Path, tmp_path: Path) -> None:
    """With the JavaScript and its declarations beside a program, and nothing else."""
    for name in ("gatepost.js", "gatepost.d.ts"):
        shutil.copy(CLIENT / name, tmp_path)
    (tmp_path / "program.ts").write_text(PROGRAM)
    options = (CLIENT / "tsconfig.json").read_text().replace("gatepost.ts", "program.ts")
    (tmp_path / "tsconfig.json").write_text(options)
    tsc = next((ROOT / ".cache").glob("typescript-*/node_modules/typescript/bin/tsc"), None)
    if tsc is None:
        _compile(compiler, str(tmp_path / "unused"))
        tsc = next((ROOT / ".cache").glob("typescript-*/node_modules/typescript/bin/tsc"))

    def check() -> str:
        command = ["node", str(tsc), "--noEmit", "--project", str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    assert check() == ""
    (tmp_path / "program.ts").write_text("\n".join([PROGRAM, *MISTAKES.values()]))
    found = check()
    assert all(code in found for code in MISTAKES), found
