"""The abuse log: counted, one incident an hour, bounded, from any thread."""

import pytest

from gatepost.delivery import LocalNode, RetryPolicy, build_core
from gatepost.delivery.abuse import INTERVAL_MS, MAX_ENTRIES, OTHERS, STRANGERS, AbuseKind
from gatepost.errors import InvalidRequest
from gatepost.events import NodeKey
from gatepost.journal import Tx, open_memory_journal
from gatepost.mailbox import MailboxPolicy
from gatepost.testing import ManualClock

FORGED = AbuseKind.FORGED_SENDER


class Reporter:
    """A core with its journal and its writer, without a thread."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_800_000_000_000)
        node = LocalNode("me", "me-1", NodeKey.generate(self.clock), self.clock)
        self.connection = open_memory_journal()
        self.core = build_core(node, RetryPolicy(), MailboxPolicy())
        self.writer = self.core.build_writer(self.connection, lambda outcomes: None)
        self.report = self.core.abuse.report_abuse

    def incidents(self) -> list[tuple[str, str]]:
        query = "SELECT subject, detail FROM incident WHERE class = 'abuse' ORDER BY raised_at, id"
        return [(str(row[0]), str(row[1])) for row in self.connection.execute(query)]


@pytest.fixture
def reporter() -> Reporter:
    return Reporter()


def test_many_reports_are_one_incident_that_names_the_source(reporter: Reporter) -> None:
    for number in range(1000):
        reporter.report("mallory", FORGED, f"event {number} in the name of boss")
    reporter.writer.run_group([])
    ((subject, detail),) = reporter.incidents()
    assert subject.startswith("mallory/forged_sender@")
    assert detail == "mallory was refused (forged_sender): event 0 in the name of boss"
    assert reporter.core.abuse.counts() == {("mallory", FORGED): 1000}


def test_abuse_that_goes_on_is_an_incident_once_an_hour(reporter: Reporter) -> None:
    for _ in range(4 * 60):
        reporter.report("mallory", FORGED, "again")
        reporter.writer.run_group([])
        reporter.clock.advance(INTERVAL_MS // 60)
    assert len(reporter.incidents()) == 4


def test_a_restart_does_not_repeat_the_incident_of_the_same_hour(reporter: Reporter) -> None:
    reporter.report("mallory", FORGED, "once")
    reporter.writer.run_group([])
    core = build_core(reporter.core.node, RetryPolicy(), MailboxPolicy())
    core.abuse.report_abuse("mallory", FORGED, "once more")
    core.build_writer(reporter.connection, lambda outcomes: None).run_group([])
    assert len(reporter.incidents()) == 1


def test_the_incident_stays_if_the_operation_that_reported_it_is_undone(reporter: Reporter) -> None:
    def refuse(tx: Tx) -> None:
        reporter.report("mallory", FORGED, "refused")
        raise InvalidRequest("refused")

    reporter.writer.run_group([(refuse, lambda value, error: None)])
    assert len(reporter.incidents()) == 1


def test_the_incident_of_a_group_that_failed_is_in_the_next_one(reporter: Reporter) -> None:
    reporter.report("mallory", FORGED, "refused")
    tx = Tx(reporter.connection, reporter.clock.now())
    tx.begin()
    reporter.core.abuse.before_commit(tx)
    tx.rollback()
    reporter.core.abuse.rolled_back()
    assert reporter.incidents() == []
    reporter.writer.run_group([])
    reporter.writer.run_group([])
    assert len(reporter.incidents()) == 1


def test_only_a_report_that_becomes_an_incident_wakes_the_writer(reporter: Reporter) -> None:
    woken: list[None] = []
    reporter.core.abuse.wake_writer = lambda: woken.append(None)
    for _ in range(100):
        reporter.report("mallory", FORGED, "again")
    assert len(woken) == 1


def test_sources_are_bounded_and_the_rest_is_counted_together(reporter: Reporter) -> None:
    for number in range(5000):
        reporter.report(f"node-{number}", FORGED, "x")
    reporter.writer.run_group([])
    counts = reporter.core.abuse.counts()
    assert sum(counts.values()) == 5000
    assert len(counts) <= MAX_ENTRIES
    assert counts[OTHERS, FORGED] > 4000
    reporter.clock.advance(2 * INTERVAL_MS)
    reporter.report("mallory", FORGED, "after the others went")
    assert reporter.core.abuse.counts()["mallory", FORGED] == 1


@pytest.mark.parametrize("at_once", [True, False])
def test_any_number_of_addresses_is_one_incident_that_counts_them(
    reporter: Reporter, at_once: bool
) -> None:
    for number in range(400):
        reporter.report(f"address:10.0.{number // 256}.{number % 256}", FORGED, "the same datagram")
        if not at_once:
            reporter.writer.run_group([])
            reporter.clock.advance(1000)
    reporter.clock.advance(60_000)
    reporter.report("address:10.0.0.0", FORGED, "again")
    reporter.writer.run_group([])
    ((subject, detail),) = reporter.incidents()
    assert subject.startswith(f"{STRANGERS}/forged_sender@")
    assert detail.startswith("400 sources were refused (forged_sender), such as address:10.0.0.0, ")
    assert detail.endswith(": the same datagram")


def test_one_address_is_named(reporter: Reporter) -> None:
    for _ in range(9):
        reporter.report("address:10.0.0.1", FORGED, "wrong")
    reporter.writer.run_group([])
    ((_, detail),) = reporter.incidents()
    assert detail == "address:10.0.0.1 was refused (forged_sender): wrong"


def test_a_flood_of_addresses_or_nodes_does_not_hide_a_node_that_was_named_before(
    reporter: Reporter,
) -> None:
    reporter.report("mallory", FORGED, "x")
    for number in range(2000):
        reporter.report(f"address:{number}", FORGED, "x")
        reporter.report(f"node-{number}", FORGED, "x")
    reporter.report("mallory", FORGED, "x")
    reporter.writer.run_group([])
    assert reporter.core.abuse.counts()["mallory", FORGED] == 2
    found = dict(reporter.incidents())
    assert len(found) <= 18
    assert any(subject.startswith("mallory/") for subject in found)
    assert any("or more sources were refused" in detail for detail in found.values())


def test_addresses_do_not_take_the_place_of_a_node_that_comes_later(reporter: Reporter) -> None:
    for number in range(2000):
        reporter.report(f"address:{number}", FORGED, "x")
    reporter.report("mallory", FORGED, "x")
    reporter.writer.run_group([])
    assert reporter.core.abuse.counts()["mallory", FORGED] == 1
    assert {subject.partition("/")[0] for subject, _ in reporter.incidents()} == {
        *(STRANGERS, "mallory")
    }


def test_text_of_the_source_is_cut_and_cannot_control_a_terminal(reporter: Reporter) -> None:
    reporter.report("mal\nlory" * 100, FORGED, "\x1b[2J\nERROR \u202e fake\ud800" + "x" * 10_000)
    reporter.writer.run_group([])
    ((subject, detail),) = reporter.incidents()
    assert subject.isprintable() and detail.isprintable()
    assert len(subject) < 200 and len(detail) < 500


def test_a_clock_that_goes_back_does_not_silence_the_log(reporter: Reporter) -> None:
    reporter.report("mallory", FORGED, "first")
    reporter.writer.run_group([])
    reporter.clock.advance(-10 * INTERVAL_MS)
    reporter.report("mallory", FORGED, "second")
    reporter.writer.run_group([])
    assert len(reporter.incidents()) == 2
