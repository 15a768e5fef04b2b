"""Timers of deliveries: retries, waiting for a node that is away, and a breached SLA."""

from msgspec import UNSET

from tests.delivery.mesh import Gate, Mesh
from tests.delivery.tools import attempts, letters, online, signals, wait

SECOND = 1_000
DAY = 86_400 * SECOND


def test_without_an_answer_it_is_sent_again_without_its_payload(
    mesh: Mesh, a: Gate, b: Gate
) -> None:
    sent = a.send(b).event_id
    wait(mesh, 19 * SECOND)
    assert attempts(a, sent) == [1]
    wait(mesh, 2 * SECOND)
    assert a.state(sent) == "retry_pending"
    wait(mesh, 3 * SECOND)
    assert (a.state(sent), attempts(a, sent)) == ("emitted", [1, 2])
    first, again = a.events()
    assert first.payload is not UNSET
    assert again.payload is UNSET


def test_attempts_go_on_though_the_clock_was_set_back(mesh: Mesh, a: Gate, b: Gate) -> None:
    sent = a.send(b).event_id
    for number in range(2, 4):
        mesh.clock.advance(-DAY // 24)
        wait(mesh, 0)
        wait(mesh, 20 * SECOND)
        assert a.state(sent) == "retry_pending"
        mesh.clock.advance(-DAY // 24)
        wait(mesh, 0)
        wait(mesh, 360 * SECOND)
        assert attempts(a, sent) == list(range(1, number + 1))


def test_after_fifteen_attempts_it_is_given_up_and_kept(mesh: Mesh, a: Gate, b: Gate) -> None:
    sent = a.send(b, b'{"keep": "me"}').event_id
    for _ in range(60):
        wait(mesh, 400 * SECOND)
    assert a.state(sent) == "dead_letter"
    assert len(attempts(a, sent)) == 15
    assert [letter.reason for letter in letters(a)] == ["exhausted"]
    assert a.rows("SELECT payload FROM undelivered") == [(b'{"keep": "me"}',)]
    assert a.incidents("dead_letter") == [sent]


def test_no_attempt_is_spent_on_a_node_that_is_away(mesh: Mesh, a: Gate, b: Gate) -> None:
    online(mesh, "a", "c")
    sent = a.send(b).event_id
    wait(mesh, DAY - SECOND)
    assert (a.state(sent), attempts(a, sent)) == ("emitted", [1])
    wait(mesh, 2 * SECOND)
    assert (a.state(sent), letters(a)[0].reason) == ("dead_letter", "expired")


def test_a_node_that_comes_back_gets_the_mail_that_waited(mesh: Mesh, a: Gate, b: Gate) -> None:
    online(mesh, "a", "c")
    ids = a.send_many(b, 3)
    wait(mesh, 3_600 * SECOND)
    online(mesh, "a", "b", "c")
    mesh.link("a", "b")
    mesh.flow()
    assert b.mail() == ids
    assert a.state(ids[0]) == "accepted"


def test_accepted_and_not_processed_is_an_incident_and_a_question(
    mesh: Mesh, a: Gate, b: Gate
) -> None:
    mesh.link("a", "b")
    sent = a.send(b).event_id
    mesh.flow()
    wait(mesh, 601 * SECOND)
    assert a.state(sent) == "incident"
    (subject,) = a.incidents("sla_breach")
    assert subject.startswith("A/B@")
    assert signals(a, "b") == ["status_request"]
    b.settle()
    mesh.flow()
    assert a.state(sent) == "processed"
    assert attempts(a, sent) == [1]


def test_late_messages_of_a_pair_are_one_incident_for_each_episode(
    mesh: Mesh, a: Gate, b: Gate
) -> None:
    mesh.link("a", "b")
    for episode in (1, 2):
        ids = a.send_many(b, 3)
        mesh.flow()
        wait(mesh, 601 * SECOND)
        ids += a.send_many(b, 2)
        mesh.flow()
        wait(mesh, 1_300 * SECOND)
        assert {a.state(id) for id in ids} == {"incident"}
        assert len(a.incidents("sla_breach")) == episode
        while b.settle():
            mesh.flow()
        assert {a.state(id) for id in ids} == {"processed"}
