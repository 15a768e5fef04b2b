"""The documentation site: what it is assembled from, and the check of the built pages."""

import re
import subprocess
from pathlib import Path

import pytest

from gatepost.cli.command_table import COMMANDS
from scripts import build_site
from scripts.check_site import find_problems

ROOT = Path(__file__).parents[1]
_MOST_LINES = 300


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build_site.main(folder)
    return folder


def test_every_link_between_pages_leads_to_a_page(site: Path) -> None:
    pages = sorted((site / "src").rglob("*.md"))
    assert len(pages) > 30
    for page in pages:
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_reference_has_every_command_setting_error_and_method(site: Path) -> None:
    reference = "\n".join(page.read_text() for page in (site / "src" / "reference").iterdir())
    for entry in COMMANDS:
        assert f"## gatepost {entry.name}\n" in reference or entry.name.startswith("--")
    for wanted in ("| `max_retries` | `3` |", "`extra_missing`", "### Client.send"):
        assert wanted in reference
    for page in (site / "src" / "reference").glob("commands*.md"):
        assert len(page.read_text().splitlines()) <= 2 * _MOST_LINES, page.name


def test_programs_that_read_get_a_list_of_all_pages(site: Path) -> None:
    text = (site / "src" / "llms.txt").read_text()
    assert text.startswith("# Gatepost\n\n> ")
    listed = set(re.findall(r"\]\(([^)]+)\):", text))
    assert listed == {str(page.relative_to(site / "src")) for page in (site / "src").rglob("*.md")}


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs" / "howto").glob("*.md")), ids=lambda p: p.stem
)
def test_a_how_to_answers_one_question_with_commands_that_exist(page: Path) -> None:
    text = page.read_text()
    assert re.match(r"# How do I .*\?\n", text) and len(text.splitlines()) <= 60
    names = {entry.name for entry in COMMANDS}
    blocks = "\n".join(re.findall(r"```console\n(.*?)```", text, re.DOTALL))
    for words in re.findall(
        r"(?:[$|] |bin/|-T \w+ |exec north )gatepost ([a-z-]+(?: [a-z-]+)?)", blocks
    ):
        assert words in names or words.split()[0] in names, words


def test_dead_links_and_requests_to_other_hosts_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="x"></h1><a href="b.html#y"></a><a href="c.html"></a><a href="#x"></a>'
        '<script src="//cdn.example/x.js"></script><a href="https://example.org/"></a>'
    )
    (tmp_path / "b.html").write_text('<p id="z"></p>')
    assert find_problems(tmp_path) == [
        "a.html loads //cdn.example/x.js",
        "a.html: b.html#y: there is no such section",
        "a.html: c.html leads nowhere",
    ]


@pytest.mark.full
def test_the_site_builds_without_warnings_dead_links_and_foreign_requests() -> None:
    ran = subprocess.run(["scripts/site"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
