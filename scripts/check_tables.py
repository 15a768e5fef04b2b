"""Checks that SQL names a table of the journal only in the module that owns it.

The owners stand in `pyproject.toml`, beside the import rules. Each table belongs to one module or
package, and other modules call its functions. There are no exceptions: a statement that needs a
condition on the table of another owner takes it from that owner, as a constant.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "gatepost"

_CREATED = re.compile(r"\bCREATE TABLE(?: IF NOT EXISTS)? (\w+)")
# Keywords are written in capitals, and names are not: so prose is not taken for SQL.
_SOURCE = r"([a-z]\w*)(?:\s+(?:AS\s+)?[a-z]\w*)?"
_READ = re.compile(rf"\b(?:FROM|JOIN)\s+({_SOURCE}(?:\s*,\s*{_SOURCE})*)")
_WRITTEN = re.compile(r"\b(?:INTO|UPDATE(?: OR [A-Z]+)?|DELETE FROM)\s+([a-z]\w*)")
_NAME_FOLLOWS = re.compile(r"\b(?:FROM|JOIN|INTO|UPDATE(?: OR [A-Z]+)?)\s+$")
# Stands for the table of a statement that takes its name from a variable.
UNNAMED = "?"


class TableUse(NamedTuple):
    module: str
    line: int
    table: str
    is_write: bool

    def __str__(self) -> str:
        verb = "writes" if self.is_write else "reads"
        return f"{self.module}:{self.line} {verb} `{self.table}`"


class TableRules(NamedTuple):
    """`owners` maps a table to its owner; the rules do not apply to the packages `outside`."""

    owners: Mapping[str, str]
    outside: Sequence[str] = ()

    def is_owner(self, use: TableUse) -> bool:
        return is_within(use.module, self.owners[use.table])


def is_within(module: str, owner: str) -> bool:
    return f"{module}.".startswith(f"{owner}.")


def load_rules(settings: str) -> TableRules:
    """The rules in the text of a `pyproject.toml`."""
    rules = tomllib.loads(settings)["tool"]["gatepost"]["tables"]
    owners = {table: owner for owner, tables in rules["owners"].items() for table in tables}
    return TableRules(owners, rules["outside"])


def load_tables(package: Path) -> set[str]:
    """The tables of the journal, by its migrations."""
    files = sorted((package / "journal" / "schema").glob("*.sql"))
    return {name for file in files for name in _CREATED.findall(file.read_text())}


def find_uses(package: Path, tables: set[str], outside: Sequence[str]) -> list[TableUse]:
    uses: list[TableUse] = []
    for path in sorted(package.rglob("*.py")):
        module = ".".join(path.relative_to(package).with_suffix("").parts)
        if not any(is_within(module, each) for each in outside):
            uses += find_uses_in(module, path.read_text(), tables)
    return uses


def find_uses_in(module: str, code: str, tables: set[str]) -> Iterator[TableUse]:
    """The tables that the SQL of one module names, each once per string."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.JoinedStr) and _leaves_name_open(node):
            yield TableUse(module, node.lineno, UNNAMED, False)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            written = set(_WRITTEN.findall(node.value))
            read = {name for found in _READ.findall(node.value) for name in _names_in(found[0])}
            for table in sorted((written | read) & tables):
                yield TableUse(module, node.lineno, table, table in written)


def _names_in(sources: str) -> list[str]:
    return [source.split()[0] for source in sources.split(",")]


def _leaves_name_open(text: ast.JoinedStr) -> bool:
    """Whether an f-string puts a variable where SQL has the name of a table."""
    return any(
        isinstance(part, ast.Constant) and _NAME_FOLLOWS.search(str(part.value))
        for part in text.values[:-1]
    )


def find_problems(rules: TableRules, tables: set[str], uses: Sequence[TableUse]) -> list[str]:
    problems = [f"table `{table}` has no owner" for table in sorted(tables - rules.owners.keys())]
    problems += [
        f"`{table}`, which {rules.owners[table]} owns, is not in the schema"
        for table in sorted(rules.owners.keys() - tables)
    ]
    problems += [
        f"{use.module}:{use.line} names its table in a variable: name it in the statement"
        for use in uses
        if use.table == UNNAMED
    ]
    known = [use for use in uses if use.table in rules.owners]
    problems += [
        f"{use}, which {rules.owners[use.table]} owns: call a function there"
        for use in known
        if not rules.is_owner(use)
    ]
    owned = {use.table for use in known if rules.is_owner(use)}
    problems += [
        f"{rules.owners[table]} owns `{table}`, and has no SQL for it"
        for table in sorted(rules.owners.keys() - owned)
    ]
    return problems


def main() -> int:
    rules = load_rules((ROOT / "pyproject.toml").read_text())
    tables = load_tables(PACKAGE)
    problems = find_problems(rules, tables, find_uses(PACKAGE, tables, rules.outside))
    for problem in problems:
        print(problem)
    print(f"{len(tables)} tables, {len(problems)} problems")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
