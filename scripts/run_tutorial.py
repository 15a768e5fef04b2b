"""Runs docs/tutorial.md as its reader would: one shell, every command, and its output compared.

`run_tutorial.py PAGE` runs in the current folder, with the `gatepost` on PATH. Standard library
only: scripts/release runs it with a freshly installed wheel.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

_COMMAND_SECS = 120.0


class Step(NamedTuple):
    """A command with its further lines, and what it prints; `…` stands for any text."""

    command: str
    expected: list[str]


def read_steps(page: str) -> list[Step]:
    """The steps of all console blocks but those after a comment `<!-- not run: … -->`."""
    blocks = re.findall(r"(<!-- not run: .*? -->\n)?^```console\n(.*?)^```", page, re.M | re.S)
    return [step for skipped, block in blocks if not skipped for step in _read_block(block)]


def _read_block(block: str) -> list[Step]:
    steps: list[Step] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            steps.append(Step(line[2:], []))
        elif line == ">" or line.startswith("> "):
            steps[-1] = Step(f"{steps[-1].command}\n{line[2:]}", steps[-1].expected)
        else:
            steps[-1].expected.append(line)
    return steps


def matches(expected: list[str], printed: str) -> bool:
    pattern = "\n".join(".*".join(map(re.escape, line.split("…"))) for line in expected)
    return re.fullmatch(pattern, printed.rstrip("\n")) is not None


class Shell:
    """One bash, so that variables and jobs last from command to command."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._folder = folder
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder, env=env, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, command: str) -> str:
        """Run a command; returns what it printed. A job in the background prints elsewhere."""
        assert self._bash.stdin is not None and self._bash.stdout is not None
        self._bash.stdin.write(f"{command}\nprintf '\\001%s\\n' $?\n")
        self._bash.stdin.flush()
        printed = ""
        for line in self._bash.stdout:
            text, mark, status = line.partition("\x01")
            printed += text
            if mark:
                return printed if status == "0\n" else f"{printed}(exit status {status.strip()})"
        raise RuntimeError(f"the shell ended at: {command}")

    def close(self) -> None:
        assert self._bash.stdin is not None and self._bash.stdout is not None
        self._bash.stdin.close()
        self._bash.stdout.close()
        self._bash.wait(_COMMAND_SECS)


def run_tutorial(page: Path, folder: Path, env: dict[str, str]) -> list[str]:
    """Run all steps; returns how the first one differs, or nothing."""
    shell = Shell(folder, env)
    try:
        for step in read_steps(page.read_text(encoding="utf-8")):
            printed = shell.run(step.command)
            if not matches(step.expected, printed):
                return [f"$ {step.command}", "expected:", *step.expected, "printed:", printed]
    finally:
        shell.run("kill -9 $(jobs -p) 2>/dev/null; true")
        for name in ("south", "north"):
            shell.run(f"gatepost down --state-dir {name} >/dev/null 2>&1; true")
        shell.close()
    return []


if __name__ == "__main__":
    found = run_tutorial(Path(sys.argv[1]).absolute(), Path.cwd(), dict(os.environ))
    sys.exit("\n".join(found) if found else None)
