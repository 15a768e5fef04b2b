"""The incident log: what a peer causes again and again is counted, and recorded so often."""

from gatepost.delivery.incidents import IncidentLog
from gatepost.journal import Tx, open_memory_journal

HOUR = 3_600_000


def raise_many(log: IncidentLog, tx: Tx, kind: str, peer: str, count: int) -> None:
    for number in range(count):
        log.raise_(tx, kind, f"{peer}/{number}", "again")
    tx.run_effects()


def test_a_peer_fills_neither_the_log_nor_the_share_of_another() -> None:
    log, connection = IncidentLog("me"), open_memory_journal()
    tx = Tx(connection, 10 * HOUR)
    raise_many(log, tx, "skipped", "mallory", 5000)
    raise_many(log, tx, "skipped", "bob", 3)
    raise_many(log, tx, "dead_letter", "x", 200)
    rows = connection.execute("SELECT class, count(*) FROM incident GROUP BY class ORDER BY class")
    assert rows.fetchall() == [("dead_letter", 200), ("skipped", 104)]
    assert log.counts == {"skipped": 5003, "dead_letter": 200}


def test_the_next_hour_has_its_own_incidents() -> None:
    log, connection = IncidentLog("me"), open_memory_journal()
    raise_many(log, Tx(connection, 10 * HOUR), "skipped", "mallory", 200)
    log.raise_(Tx(connection, 11 * HOUR), "skipped", "mallory/later", "again")
    assert connection.execute("SELECT count(*) FROM incident").fetchall() == [(102,)]


def test_an_hour_of_one_class_is_bounded_whatever_the_subjects_are() -> None:
    log, connection = IncidentLog("me"), open_memory_journal()
    tx = Tx(connection, 10 * HOUR)
    raise_many(log, tx, "agent_wanted", "x", 5000)
    raise_many(log, tx, "dead_letter", "y", 1)
    rows = connection.execute("SELECT class, count(*) FROM incident GROUP BY class ORDER BY class")
    assert rows.fetchall() == [("agent_wanted", 1001), ("dead_letter", 1)]
    assert log.counts["agent_wanted"] == 5000


def test_what_is_not_recorded_is_one_incident_that_says_how_many() -> None:
    log, connection = IncidentLog("me"), open_memory_journal()
    raise_many(log, Tx(connection, 10 * HOUR), "skipped", "mallory", 1200)
    query = "SELECT detail FROM incident WHERE subject LIKE 'mallory/others@%'"
    ((detail,),) = connection.execute(query).fetchall()
    assert detail == "1024 or more others in this hour are not recorded, such as mallory/1123"


def test_a_repeated_incident_takes_no_share_of_the_hour() -> None:
    log, connection = IncidentLog("me"), open_memory_journal()
    tx = Tx(connection, 10 * HOUR)
    for _ in range(3000):
        log.raise_(tx, "agent_wanted", "builder/mallory", "again")
    log.raise_(tx, "agent_wanted", "builder/bob", "once")
    assert connection.execute("SELECT count(*) FROM incident").fetchall() == [(2,)]
