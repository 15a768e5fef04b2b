"""The documents say what the code does."""

import re
import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name
from typing import get_args

import pytest
from msgspec import structs

from gatepost.config import Settings
from gatepost.delivery.abuse import AbuseKind
from gatepost.delivery.frames import AnyFrame
from gatepost.ledger import TERMS
from gatepost.mailbox.enqueue import PAIR_NUMBER_BITS

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "gatepost"
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
# The changelog also names files that are gone.
CURRENT_PAGES = [page for page in PAGES if page.name != "CHANGELOG.md"]
# A file of settings, and the names of spans.
NO_MODULES = {"gatepost.toml", "gatepost.send", "gatepost.deliver", "gatepost.turn"}
NO_MODULES |= {"gatepost.ts", "gatepost.js", "gatepost.d.ts"}
STATE_FILES = {"journal.db", "node.key"}


def test_generated_parts_are_up_to_date() -> None:
    command = [sys.executable, "scripts/generate_docs.py", "--check"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + "run scripts/docs"


def test_links_between_documents_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_links_to_headings_lead_to_one() -> None:
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
            linked = page.parent / target if target else page
            assert anchor in _heading_anchors(linked), f"{page.name} links to {target}#{anchor}"


def _heading_anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", CURRENT_PAGES, ids=lambda page: page.name)
def test_files_and_modules_that_a_document_names_exist(page: Path) -> None:
    text = page.read_text()
    for file in re.findall(r"`([\w./-]+\.(?:py|sql|mjs))`", text):
        assert _exists(file), f"{page.name} names {file}"
    for folder in re.findall(r"`((?:\w+/)+)`", text):
        # Folders of a state directory or an archive are not ours to find.
        if _exists(folder.partition("/")[0]):
            assert _exists(folder), f"{page.name} names {folder}"
    for name in set(re.findall(r"`(gatepost(?:\.\w+)+)`", text)) - NO_MODULES:
        assert resolve_name(name), f"{page.name} names {name}"


def test_every_path_on_the_page_for_newcomers_exists() -> None:
    text = (ROOT / "AGENTS.md").read_text()
    named = [
        word.rstrip(".,:;")
        for code in re.findall(r"`([^`]+)`", text)
        for word in code.split()
        if re.search(r"/|\.(?:py|sql|toml|yaml|md)$", word) and not word.startswith(".venv/")
    ]
    assert len(named) > 40
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_page_for_newcomers_says_where_every_package_is() -> None:
    text = (ROOT / "AGENTS.md").read_text()
    packages = [init.parent.name for init in PACKAGE.glob("*/__init__.py")]
    assert [name for name in packages if f"`src/gatepost/{name}/" not in text] == []


def test_commits_are_checked_by_the_tools_that_scripts_check_runs() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    checks = re.findall(r"^check (\S+)", (ROOT / "scripts" / "check").read_text(), re.MULTILINE)
    entries = re.findall(r"^ +entry: (\S+)", hooks, re.MULTILINE)
    assert {f".venv/bin/{tool}" for tool in checks} <= set(entries)
    assert all(entry.startswith((".venv/", "scripts/")) for entry in entries)
    assert "language: system" in hooks and "repo: https" not in hooks


def _glossary() -> list[list[str]]:
    text = (ROOT / "docs" / "glossary.md").read_text()
    table = text.partition("<!-- words -->\n")[2].partition("<!-- end -->")[0]
    rows = [row.strip("| ").split(" | ") for row in table.splitlines()]
    return rows[2:]


def test_every_word_of_the_glossary_is_defined_by_code_that_exists() -> None:
    words = [row[0] for row in _glossary()]
    assert len(words) > 50
    assert words == sorted(set(words))
    for word, meaning, code in _glossary():
        name = code.strip("`")
        assert meaning and ((PACKAGE / name).exists() or resolve_name(name)), word


def _exists(path: str) -> bool:
    return (ROOT / path).exists() or (PACKAGE / path).exists()


@pytest.mark.parametrize("page", CURRENT_PAGES, ids=lambda page: page.name)
def test_settings_that_a_document_names_exist(page: Path) -> None:
    sections = {field.name: field.type for field in structs.fields(Settings)}
    for section, key in re.findall(r"`(\w+)\.(\w+)(?: = [^`]*)?`", page.read_text()):
        modules = (f"{section}/{key}.py", f"{section}/{key}/")
        is_file = f"{section}.{key}" in STATE_FILES or any(map(_exists, modules))
        if section in sections and not is_file:
            keys = [field.name for field in structs.fields(sections[section])]
            assert key in keys, f"{page.name} names {section}.{key}"


def _names_in_first_column(page: Path, header: str) -> list[str]:
    """The names in backticks in the first column of the table with this header."""
    table = page.read_text().partition(f"{header}\n")[2].partition("\n\n")[0]
    cells = [row.split("|")[1] for row in table.splitlines()]
    return [name for cell in cells for name in re.findall(r"`([\w/]+)`", cell)]


def test_the_table_of_frames_is_complete() -> None:
    listed = _names_in_first_column(ROOT / "docs" / "pipes.md", "| frame | content |")
    tags = {frame.__struct_config__.tag for frame in get_args(AnyFrame)}
    assert len(listed) == len(set(listed)) and set(listed) == tags


def test_tests_mirror_modules_except_where_contributing_says_otherwise() -> None:
    grouped = _names_in_first_column(ROOT / "CONTRIBUTING.md", "| package | its tests |")
    assert all((PACKAGE / name).is_dir() for name in grouped)
    for folder in PACKAGE.rglob("__init__.py"):
        package = folder.parent.relative_to(PACKAGE)
        if not any(f"{package.as_posix()}/".startswith(f"{name}/") for name in grouped):
            modules = [each.stem for each in folder.parent.glob("*.py") if each != folder]
            tests = ROOT / "tests" / package
            mirrored = [m for m in modules if (tests / f"test_{m.lstrip('_')}.py").exists()]
            assert len(mirrored) * 2 >= len(modules), f"few modules of {package} have a test file"


def test_every_attack_names_tests_that_exist() -> None:
    page = (ROOT / "docs" / "security.md").read_text().partition("## Attacks\n")[2]
    rows = [row.split(" | ") for row in page.splitlines() if row.startswith("| ")]
    for attack, stopped_by, test in (row for row in rows if row[1] != "stopped by"):
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", test)
        assert named and stopped_by, f"nothing stands for it: {attack}"
        for file, name in named:
            assert f"def {name}(" in (ROOT / file).read_text(), f"there is no {file}::{name}"


def test_every_difference_has_its_reason_and_names_tests_that_exist() -> None:
    page = (ROOT / "docs" / "differences.md").read_text()
    rows = [row.strip("| ").split(" | ") for row in page.splitlines() if row.startswith("| ")]
    rows = [row for row in rows if row[0] != "the document"]
    assert len(rows) > 30
    for document, gatepost, because, *shown_by in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", " ".join(shown_by))
        assert document and gatepost and because and named, document
        for file, name in named:
            assert f"def {name}(" in (ROOT / file).read_text(), f"there is no {file}::{name}"


def test_the_ledger_has_the_same_words_on_every_page() -> None:
    equation = f"sent = {' + '.join(term.replace('_', ' ') for term in TERMS)}"
    for page in (ROOT / "README.md", ROOT / "docs" / "pipeline.md"):
        assert equation in " ".join(page.read_text().split()), page.name


def test_the_architecture_states_the_row_id_of_mail() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    assert f"`pair << {PAIR_NUMBER_BITS} | number`" in text


def test_each_state_diagram_is_in_its_document() -> None:
    pages = (("protocol", "mailbox"), ("pipes", "delivery"), ("pipes", "inbox"), ("hub", "task"))
    for page, name in (*pages, ("hub", "session"), ("mesh", "peer"), ("mesh", "election")):
        text = (ROOT / "docs" / f"{page}.md").read_text()
        assert f"<!-- diagram: {name}.states -->\n```mermaid\nstateDiagram-v2" in text
    assert "<!-- diagram: migration.phases -->" in (ROOT / "docs" / "migration.md").read_text()


def test_readme_names_the_commands_ci_runs() -> None:
    readme, ci = (ROOT / "README.md").read_text(), (ROOT / ".ci" / "run").read_text()
    for command in ("scripts/demo", "scripts/test"):
        assert command in readme
    assert "scripts/test" in ci and "scripts/check" in ci


def test_every_kind_of_abuse_is_explained() -> None:
    table = (ROOT / "docs" / "operations.md").read_text().partition("### Abuse")[2]
    listed = re.findall(r"^\| `(\w+)` \|", table.partition("\nThe pipeline")[0], re.MULTILINE)
    assert listed == list(AbuseKind)
