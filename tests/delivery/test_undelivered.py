"""Undelivered messages: when they may be replayed, and when not."""

from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from gatepost.delivery import undelivered
from gatepost.delivery.frames import AnyFrame, EventsFrame
from gatepost.delivery.send_request import fingerprint_send
from gatepost.delivery.undelivered import (
    UndeliveredFilter,
    is_safe_to_replay,
)
from gatepost.delivery.undelivered_table import UndeliveredMessage
from gatepost.errors import UnknownMessage
from gatepost.journal import Tx
from gatepost.links.event_trace import EventTrace
from gatepost.routing import AgentHome, RoutingDirectory
from gatepost.wire.gateway_views import Replayed
from gatepost.wire.operations import NewSend
from tests.delivery.mesh import Gate, Mesh

HOUR = 3_600_000
DIGEST = "sha256:" + "a" * 64


@pytest.fixture
def mesh() -> Mesh:
    return Mesh("a", "b")


def _away(mesh: Mesh, name: str) -> None:
    """Everyone believes that this gate is not there."""
    for gate in mesh.gates.values():
        gateways = dict(gate.directory.gateways)
        gateways[name] = replace(gateways[name], online=False)
        gate.see(replace(gate.directory, gateways=gateways))


def _pass_time(mesh: Mesh, ms: int) -> None:
    mesh.clock.advance(ms)
    for gate in mesh.gates.values():
        gate.do(lambda tx: None)
    mesh.flow()


def _kept(
    gate: Gate, wanted: UndeliveredFilter | None = None, **page: Any
) -> list[UndeliveredMessage]:
    page = {"limit": 100} | page
    found: list[UndeliveredMessage] = gate.do(
        lambda tx: undelivered.find_undelivered(tx, wanted or UndeliveredFilter(), **page)
    )
    return found


def _replay(gate: Gate, message: UndeliveredMessage, force: bool = False) -> Replayed:
    def resend(tx: Tx, message: UndeliveredMessage) -> str:
        out = message.outgoing_event(gate.node.event_ids.next_id())
        gate.coordinator.send_again(tx, out, message.node)
        return out.event_id

    done: Replayed = gate.do(
        lambda tx: undelivered.replay_message(tx, message, resend, force=force, actor="ann")
    )
    return done


def _deaf(frame: AnyFrame) -> AnyFrame | None:
    return None if isinstance(frame, EventsFrame) else frame


def test_a_message_that_expired_before_it_was_sent_is_replayed_as_a_new_event(mesh: Mesh) -> None:
    a, b = mesh["a"], mesh["b"]
    _away(mesh, "b")
    sent = a.send(b, b'"hi"', ttl_secs=60)
    _pass_time(mesh, HOUR)
    (message,) = _kept(a)
    assert (message.id, message.reason, message.verdict) == (sent.event_id, "expired", "never sent")
    done = _replay(a, message)
    assert done.error is None
    mesh.meet()
    mesh.link("a", "b")
    mesh.flow()
    assert b.mail() == [done.as_event], "the old one is too old, the new one is not"
    (event,) = [each for each in a.events() if each.event_id == done.as_event]
    assert event.causation_id == sent.event_id
    (again,) = _kept(a)
    assert (again.replayed_as, again.verdict) == (done.as_event, "refused: expired")
    audited = a.rows("SELECT actor, action, subject, detail FROM audit")
    assert audited == [("ann", "undelivered.replay", sent.event_id, f"as {done.as_event}")]


def test_one_that_was_replayed_is_not_replayed_again_by_mistake(mesh: Mesh) -> None:
    a, b = mesh["a"], mesh["b"]
    _away(mesh, "b")
    a.send(b, ttl_secs=60)
    _pass_time(mesh, HOUR)
    (message,) = _kept(a)
    first = _replay(a, message)
    (message,) = _kept(a)
    error = _replay(a, message).error
    assert error is not None
    assert error.code == "unsafe_replay"
    assert str(first.as_event) in error.message


def test_a_message_its_owner_may_have_taken_needs_force(mesh: Mesh) -> None:
    a, b = mesh["a"], mesh["b"]
    wire = mesh.link("a", "b")
    mesh.flow()
    wire.end_of(b).tamper = _deaf
    sent = a.send(b, ttl_secs=60)
    mesh.flow()
    assert b.mail() == [sent.event_id], "it was taken, and nobody knows"
    _away(mesh, "b")
    _pass_time(mesh, HOUR)
    (message,) = _kept(a)
    assert message.verdict is None
    error = _replay(a, message).error
    assert error is not None
    assert error.code == "unsafe_replay"
    assert "it said nothing yet" in error.message
    assert a.rows("SELECT count(*) FROM audit") == [(0,)], "nothing was done"
    done = _replay(a, message, force=True)
    assert done.error is None
    ((detail,),) = a.rows("SELECT detail FROM audit")
    assert detail == f"as {done.as_event}, by force (no verdict)"


def test_the_last_owners_word_comes_late_and_counts(mesh: Mesh) -> None:
    a, b = mesh["a"], mesh["b"]
    wire = mesh.link("a", "b")
    mesh.flow()
    wire.end_of(b).tamper = _deaf
    id = a.send(b, ttl_secs=60).event_id
    mesh.flow()
    b.settle()
    _away(mesh, "b")
    _pass_time(mesh, HOUR)
    wire.cut()
    mesh.meet()
    mesh.link("a", "b")
    mesh.flow()
    assert _kept(a) == [], "it is no dead letter any more"
    status = a.do(lambda tx: a.coordinator.sent.status(tx, id))
    assert (status.state, status.outcome, status.verdict) == ("processed", "ok", "processed: ok")
    assert status.verdict_at == a.now()
    steps = EventTrace(Tx(a.connection, a.now()), "a").trace_events([id])
    (late,) = [step for step in steps if step.what == "heard_processed"]
    assert (late.at, late.detail, late.peer) == (a.now(), "ok", "b")
    assert "amended" in [step.what for step in steps], "the archive gets it too"


def test_a_verdict_counts_even_when_the_delivery_is_forgotten(mesh: Mesh) -> None:
    a, b = mesh["a"], mesh["b"]
    _away(mesh, "b")
    a.send(b, ttl_secs=60)
    _pass_time(mesh, HOUR)
    a.do(lambda tx: tx.execute("DELETE FROM delivery"))
    mesh.meet()
    mesh.link("a", "b")
    mesh.flow()
    (message,) = _kept(a)
    assert message.verdict == "refused: expired"
    status = a.do(lambda tx: a.coordinator.sent.status(tx, message.id))
    assert (status.state, status.verdict) == ("dead_letter", "refused: expired")


def test_a_refusal_is_a_verdict(mesh: Mesh) -> None:
    a = mesh["a"]
    agents = {**a.directory.agents, "nobody": AgentHome("b")}
    a.see(RoutingDirectory(a.directory.gateways, agents))
    mesh.link("a", "b")
    new = NewSend("A", "nobody", payload=UNSET)
    a.do(lambda tx: a.coordinator.send(tx, new, fingerprint_send(new)))
    mesh.flow()
    (message,) = _kept(a)
    assert (message.reason, message.verdict) == ("refused", "refused: no_agent")
    assert is_safe_to_replay(message.reason, message.verdict)


def test_a_held_event_is_reported_as_untouched_when_its_sender_gives_up(mesh: Mesh) -> None:
    a, b = mesh["a"], mesh["b"]
    key = (DIGEST, b"k" * 32, 10, mesh.clock.now())
    a.do(lambda tx: tx.execute("INSERT INTO blob VALUES (?, ?, ?, ?, NULL, NULL)", key))
    mesh.link("a", "b")
    new = NewSend("A", "B", payload_ref=DIGEST, ttl_secs=60)
    a.do(lambda tx: a.coordinator.send(tx, new, fingerprint_send(new)))
    mesh.flow()
    assert b.rows("SELECT why FROM held") == [("blob",)]
    _pass_time(mesh, HOUR)
    (message,) = _kept(a)
    assert message.reason == "expired"
    assert message.verdict == "refused: given_up"
    assert is_safe_to_replay(message.reason, message.verdict)
    assert b.rows("SELECT * FROM held") == []


@pytest.mark.parametrize(
    ("reason", "verdict", "safe"),
    [
        ("no_route", None, True),
        ("expired", "never sent", True),
        ("expired", None, False),
        ("exhausted", "refused: expired", True),
        ("exhausted", "refused: resend", False),
        ("expired", "accepted", False),
        ("expired", "processed: ok", False),
        ("expired", "processed: dead_letter", False),
        ("expired", "processed: expired", True),
        ("expired", "refused: restored from a backup", False),
        ("owner_restored", "refused: no_agent", False),
        ("owner_lost_it", "refused: unknown: it is not in this journal", False),
        ("expired", "restored from a backup", False),
    ],
)
def test_which_verdicts_are_safe_to_replay(reason: str, verdict: str | None, safe: bool) -> None:
    assert is_safe_to_replay(reason, verdict) is safe


def test_filters_and_pages(mesh: Mesh) -> None:
    a, b = mesh["a"], mesh["b"]
    _away(mesh, "b")
    ids = []
    for _ in range(5):
        ids.append(a.send(b, ttl_secs=60).event_id)
        _pass_time(mesh, 100_000)
    assert [message.id for message in _kept(a)] == ids
    first = _kept(a, limit=2)
    assert [each.id for each in _kept(a, limit=2, after=first[-1].id)] == ids[2:4]
    assert [each.id for each in _kept(a, UndeliveredFilter(event_ids=[ids[3]]))] == [ids[3]]
    assert (
        len(_kept(a, UndeliveredFilter(agent="A")))
        == len(_kept(a, UndeliveredFilter(agent="B")))
        == 5
    )
    assert _kept(a, UndeliveredFilter(agent="C")) == []
    assert _kept(a, UndeliveredFilter(reason="refused")) == []
    middle = _kept(a)[2].failed_at // 1000
    assert len(_kept(a, UndeliveredFilter(failed_after=middle))) == 2
    assert len(_kept(a, UndeliveredFilter(failed_before=middle))) == 2
    _replay(a, _kept(a)[0])
    assert [each.id for each in _kept(a, UndeliveredFilter(replayed=True))] == [ids[0]]
    assert len(_kept(a, UndeliveredFilter(replayed=False))) == 4
    with pytest.raises(UnknownMessage):
        _kept(a, after=a.node.event_ids.next_id())


def test_discarding_is_for_good_and_audited(mesh: Mesh) -> None:
    a, b = mesh["a"], mesh["b"]
    _away(mesh, "b")
    ids = [a.send(b, ttl_secs=60).event_id for _ in range(3)]
    _pass_time(mesh, HOUR)
    wanted = UndeliveredFilter(event_ids=ids[:2])
    assert a.do(lambda tx: undelivered.discard_messages(tx, wanted, 10, "ann")) == 2
    assert [message.id for message in _kept(a)] == ids[2:]
    audited = a.rows("SELECT action, subject, detail FROM audit ORDER BY id")
    assert sorted(audited) == sorted(("undelivered.discard", id, "expired") for id in ids[:2])


def test_a_view_has_the_payload_only_if_asked(mesh: Mesh) -> None:
    a, b = mesh["a"], mesh["b"]
    _away(mesh, "b")
    a.send(b, b'{"n":1}', ttl_secs=60)
    _pass_time(mesh, HOUR)
    (message,) = _kept(a)
    assert undelivered.view_message(message, with_payload=False).payload is UNSET
    shown = undelivered.view_message(message, with_payload=True)
    assert bytes(shown.payload) == b'{"n":1}'  # type: ignore[arg-type]
    assert (shown.safe, shown.node) == (True, "b")


def test_a_replayed_message_keeps_its_subject(mesh: Mesh) -> None:
    a, b = mesh["a"], mesh["b"]
    _away(mesh, "b")
    a.send(b, ttl_secs=60, subject="change 17")
    _pass_time(mesh, HOUR)
    (message,) = _kept(a)
    assert undelivered.view_message(message, with_payload=False).subject == "change 17"
    _replay(a, message)
    subjects = [event.subject for event in a.events() if event.kind == "message"]
    assert subjects == ["change 17"] * 2
