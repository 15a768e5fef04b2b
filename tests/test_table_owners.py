"""The tables of the journal and their owners: `scripts/check_tables.py`."""

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.check_tables import (
    PACKAGE,
    UNNAMED,
    TableRules,
    TableUse,
    find_problems,
    find_uses,
    find_uses_in,
    load_tables,
)

ROOT = Path(__file__).parent.parent
TABLES = {"mail", "pair", "task"}
OWNERS = {"mail": "mailbox", "pair": "mailbox", "task": "hub.tasks"}
OWN_USES = [
    TableUse("mailbox.leases", 1, "mail", False),
    TableUse("mailbox.leases", 2, "pair", True),
    TableUse("hub.tasks", 1, "task", True),
]


def _tables_in(code: str) -> list[tuple[str, bool]]:
    return [(use.table, use.is_write) for use in find_uses_in("delivery", code, TABLES)]


def _problems(*uses: TableUse) -> list[str]:
    return find_problems(TableRules(OWNERS), TABLES, [*OWN_USES, *uses])


def test_no_module_names_the_table_of_another_in_its_sql() -> None:
    command = [sys.executable, "scripts/check_tables.py"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


def test_a_planted_violation_in_the_real_package_is_found(tmp_path: Path) -> None:
    planted = tmp_path / "gateway" / "planted.py"
    planted.parent.mkdir()
    planted.write_text('SQL = "DELETE FROM lease WHERE slot = ?"\n')
    found = find_uses(tmp_path, load_tables(PACKAGE), outside=["pipeline"])
    assert found == [TableUse("gateway.planted", 1, "lease", True)]


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ('"SELECT id FROM mail m JOIN pair p ON p.id = m.id"', [("mail", False), ("pair", False)]),
        ('"SELECT 1 FROM mail AS m, task WHERE m.id = 1"', [("mail", False), ("task", False)]),
        ('"INSERT OR IGNORE INTO mail (id) VALUES (1)"', [("mail", True)]),
        ('"UPDATE OR REPLACE mail SET id = 1"', [("mail", True)]),
        ('"DELETE FROM task WHERE id IN (SELECT id FROM mail)"', [("mail", False), ("task", True)]),
        ('f"""\nSELECT {columns} FROM\n    mail WHERE id = 1"""', [("mail", False)]),
        ('"SELECT id " + "FROM mail"', [("mail", False)]),
        ('f"DELETE FROM {table} WHERE id = 1"', [(UNNAMED, False)]),
        ('"INSERT INTO mail_copy (mail) VALUES (1)"', []),
        ('"ON CONFLICT (id) DO UPDATE SET mail = 1"', []),
        ('"""Delete the mail from task to task, and update pair."""', []),
    ],
)
def test_tables_are_found_in_any_sql_and_in_no_prose(
    code: str, found: list[tuple[str, bool]]
) -> None:
    assert _tables_in(code) == found


def test_an_owner_uses_its_tables_and_no_other_module_does() -> None:
    assert _problems() == []
    (problem,) = _problems(TableUse("delivery.engage", 7, "pair", False))
    assert problem == ("delivery.engage:7 reads `pair`, which mailbox owns: call a function there")


def test_the_owner_of_a_table_can_be_one_module_of_a_package() -> None:
    (problem,) = _problems(TableUse("hub.tasks_view", 7, "task", True))
    assert problem.startswith("hub.tasks_view:7 writes `task`")


def test_a_table_named_in_a_variable_is_a_problem() -> None:
    (problem,) = _problems(TableUse("mailbox.leases", 7, UNNAMED, False))
    assert "mailbox.leases:7 names its table in a variable" in problem


def test_every_table_has_an_owner_with_sql_for_it() -> None:
    rules = TableRules(OWNERS | {"lease": "mailbox"})
    assert find_problems(rules, TABLES | {"body"}, OWN_USES) == [
        "table `body` has no owner",
        "`lease`, which mailbox owns, is not in the schema",
        "mailbox owns `lease`, and has no SQL for it",
    ]
