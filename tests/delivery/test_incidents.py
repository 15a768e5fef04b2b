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
    assert rows.fetchall() == [("dead_letter", 200), ("skipped", 103)]
    assert log.counts == {"skipped": 5003, "dead_letter": 200}


def test_the_next_hour_has_its_own_incidents() -> None:
    log, connection = IncidentLog("me"), open_memory_journal()
    raise_many(log, Tx(connection, 10 * HOUR), "skipped", "mallory", 200)
    log.raise_(Tx(connection, 11 * HOUR), "skipped", "mallory/later", "again")
    assert connection.execute("SELECT count(*) FROM incident").fetchall() == [(101,)]
