import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.conftest import Cli

NOW = int(time.time() * 1000)


@pytest.fixture(scope="module")
def told(cli: Cli) -> Iterator[Cli]:
    """A gateway which the pipeline has told something."""
    said: dict[str, list[dict[str, Any]]] = {
        "/incidents": [
            {"id": "i1", "class": "backlog", "subject": "bob", "detail": "8 wait", "raisedAt": NOW},
            {"id": "i0", "class": "silent_node", "subject": "al", "detail": "old", "raisedAt": 5},
        ],
        "/reviews": [
            {
                **{"id": f"r{n}", "capabilityId": "sum", "failureClass": "eta_breach", "count": n},
                **{"delegationSkillVersion": "1.0", "executorSkillVersion": "2.0"},
                **{"raisedAt": NOW, "corrIds": ["talk"], "eventIds": []},
            }
            for n in (1, 2)
        ],
        "/eta-advice": [
            {
                **{"capabilityId": "sum", "p50Secs": 2, "p95Secs": 60.0, "samples": 7},
                **{"recommendedEtaSeconds": 90, "at": NOW},
            }
        ],
    }
    for path, body in said.items():
        cli.post_list(path, body)
    yield cli


def test_incidents_are_listed_newest_first_and_by_class(told: Cli) -> None:
    header, *rows = told.ok("incidents").splitlines()
    columns = ["When", "Class", "Subject", "Detail", "Count", "Seen by", "Status", "Id"]
    assert header.split("\t") == columns
    assert [row.split("\t")[1] for row in rows] == ["backlog", "silent_node"]
    (found,) = told.json("incidents", "--class", "silent_node")["incidents"]
    assert (found["subject"], found["source"]) == ("al", "pipeline")
    recent = told.json("incidents", "--since", "3600")
    assert [each["class"] for each in recent["incidents"]] == ["backlog"]
    assert told.ok("incidents", "--class", "none") == "no matching incidents\n"


def test_status_counts_them(told: Cli) -> None:
    assert "incidents: 1 backlog, 1 silent_node; see `gatepost incidents`" in told.ok("status")


def test_an_incident_that_is_over_says_since_when_and_leaves_the_status(cli: Cli) -> None:
    said = {"id": "o", "class": "clock_skew", "subject": "al", "detail": "40 s", "raisedAt": NOW}
    cli.post_list("/incidents", [said])
    assert cli.json("status")["gateway"]["incidents"]["clock_skew"] == 1
    cli.post_list("/incidents", [said | {"endedAt": NOW, "count": 7}])
    (row,) = cli.ok("incidents", "--class", "clock_skew").splitlines()[1:]
    when, *_, count, _, status, _ = row.split("\t")
    assert (count, status) == ("7", f"over since {when}")
    assert "clock_skew" not in cli.json("status")["gateway"]["incidents"]


def test_an_incident_is_resolved_and_leaves_the_status(told: Cli) -> None:
    assert told.ok("incidents", "--resolve", "pipeline:i0") == "pipeline:i0 resolved\n"
    again = told("incidents", "--resolve", "pipeline:i0", "--json")
    assert again.error["code"] == "conflict"
    assert sum(told.json("status")["gateway"]["incidents"].values()) == 1


def test_incidents_are_resolved_in_bulk_by_class_and_age(told: Cli) -> None:
    bulk = [
        {
            **{"id": f"bulk-{n}", "class": "bad_archive", "subject": "x", "detail": "y"},
            "raisedAt": NOW - n * 3_600_000,
        }
        for n in range(6)
    ]
    told.post_list("/incidents", bulk)
    chosen = ("incidents", "--resolve-all", "--class", "bad_archive")
    assert told(*chosen, "--older", "7000").code == 2, "without a terminal it needs --yes"
    assert told.ok(*chosen, "--older", "7000", "--yes") == "4 incidents resolved\n"
    found = told.json("incidents", "--class", "bad_archive")["incidents"]
    assert [each["status"] for each in found] == ["open", "open", *["resolved"] * 4]
    assert told.ok(*chosen, "--yes", "--note", "tidied up") == "2 incidents resolved\n"
    assert "bad_archive" not in told.json("status")["gateway"]["incidents"]
    assert told("incidents", "--older", "5").code == 2


def test_reviews_are_listed_and_settled(told: Cli) -> None:
    header, *rows = told.ok("reviews", "list").splitlines()
    assert header.split("\t")[:2] == ["Review", "Capability"]
    assert {row.split("\t")[0] for row in rows} == {"r1", "r2"}
    assert told.ok("reviews", "resolve", "r1", "--note", "fixed") == "r1 resolved\n"
    assert told.ok("reviews", "dismiss", "r2") == "r2 dismissed\n"
    assert told("reviews", "dismiss", "r1", "--json").error["code"] == "conflict"
    assert told("reviews", "resolve", "r9", "--json").error["code"] == "not_found"
    assert told.ok("reviews", "list") == "no matching reviews\n"
    settled = {each["id"]: each for each in told.json("reviews", "list", "--status", "all")}
    assert (settled["r1"]["note"], settled["r2"]["status"]) == ("fixed", "dismissed")


def test_eta_shows_what_to_promise(told: Cli) -> None:
    _, row = told.ok("eta").splitlines()
    assert re.match(r"sum\t2 s\t1 min\t1\.5 min\t7\t", row)
