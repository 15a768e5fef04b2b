"""`gatepost undelivered`, on a real gateway whose journal has some."""

import time
from collections.abc import Iterator

import apsw
import pytest

from gatepost.clock import SystemClock
from gatepost.events import new_event_id, parse_event_id
from tests.cli.conftest import Cli

_BURY = """
INSERT INTO undelivered (event_id, kind, from_agent, to_agent, corr_id, node, reason, attempts,
    failed_at, payload, digest, traceparent, ref_id, verdict, verdict_at, replayed_as) VALUES
    (?, 'message', 'al', ?, 'c:1', 'far', 'expired', 3, ?, ?, NULL, NULL, NULL, ?, NULL, NULL)
"""


def _bury(cli: Cli, to: str, verdict: str | None = "never sent") -> str:
    id = new_event_id(SystemClock())
    connection = apsw.Connection(str(cli.home / "journal.db"))
    connection.set_busy_timeout(5_000)
    row = (parse_event_id(id), to, int(time.time() * 1000), b'"hi"', verdict)
    connection.execute(_BURY, row)
    connection.close()
    return id


@pytest.fixture
def target(cli: Cli, agent: str) -> Iterator[str]:
    yield agent
    cli.ok("undelivered", "discard", "--agent", agent, "--yes")


def test_list_says_which_of_them_need_force(cli: Cli, target: str) -> None:
    safe, unsafe = _bury(cli, target), _bury(cli, target, None)
    shown = cli.ok("undelivered", "list", "--agent", target)
    rows = {line.split("\t")[0]: line.split("\t") for line in shown.splitlines()}
    assert rows[safe][4:6] == ["expired", "never sent"]
    assert rows[unsafe][5] == "unknown (needs --force)"
    found = cli.json("undelivered", "list", "--agent", target, "--reason", "expired")["messages"]
    assert [each["safe"] for each in found] == [True, False]
    old = cli.json("undelivered", "list", "--agent", target, "--older-than", "3600")
    assert old["messages"] == []
    assert "no matching" in cli.ok("undelivered", "list", "--agent", target, "--replayed")


def test_show_has_the_payload(cli: Cli, target: str) -> None:
    id = _bury(cli, target)
    shown = cli.ok("undelivered", "show", id)
    assert shown.splitlines()[0] == f"{id} from al to {target} at far"
    assert shown.endswith("\nhi\n")
    assert cli.json("undelivered", "show", id)["payload"] == "hi"


def test_replay_sends_it_again(cli: Cli, target: str) -> None:
    id = _bury(cli, target)
    said = cli.ok("undelivered", "replay", id)
    (mail,) = cli.take(target)
    assert said == f"{id} replayed as {mail['msg_id']}\n"
    again = cli("undelivered", "replay", id, "--json")
    assert (again.code, again.error["code"]) == (1, "unsafe_replay")


def test_replay_names_the_verdict_unless_forced(cli: Cli, target: str) -> None:
    id = _bury(cli, target, "accepted")
    result = cli("undelivered", "replay", id, "--json")
    assert (result.code, result.error["code"]) == (1, "unsafe_replay")
    assert "far says 'accepted'" in result.error["message"]
    assert cli.take(target) == []
    (done,) = cli.json("undelivered", "replay", id, "--force", "--rate", "50")["results"]
    assert cli.take(target)[0]["msg_id"] == done["as_event"]


def test_nothing_to_replay_is_a_failure(cli: Cli, target: str) -> None:
    assert cli("undelivered", "replay", "--agent", target).code == 1
    assert cli("undelivered", "replay").code == 2
    assert cli("undelivered", "replay", "--all", "--agent", target).code == 2


def test_discard_asks_first(cli: Cli, target: str) -> None:
    id = _bury(cli, target)
    assert cli("undelivered", "discard", id).code == 2
    assert cli.ok("undelivered", "discard", id, "--yes") == "1 undelivered message discarded\n"
    assert cli("undelivered", "show", id).code == 1
