"""docs/tutorial.md, run from its first command to its last."""

import os
import sys
from pathlib import Path

import pytest

from scripts.run_tutorial import Step, matches, read_steps, run_tutorial

_PAGE = Path(__file__).parents[1] / "docs" / "tutorial.md"


@pytest.mark.timeout(400)
def test_every_command_of_the_tutorial_prints_what_the_page_shows(tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GATEPOST_")}
    env = {
        **kept,
        "HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "GATEPOST_LISTEN__PORT": "0",
    }
    assert not run_tutorial(_PAGE, tmp_path, env)


def test_outputs_are_compared_line_by_line() -> None:
    page = (
        "<!-- not run: x -->\n```console\n$ no\n```\n```console\n$ a <<E\n> b\n>\n> E\nx …\n```\n"
    )
    assert read_steps(page) == [Step("a <<E\nb\n\nE", ["x …"])]
    assert matches(["x …", "y"], "x 1\ny\n") and matches([], "")
    assert not matches(["x …"], "y 1\n") and not matches(["x"], "x\nmore\n")
