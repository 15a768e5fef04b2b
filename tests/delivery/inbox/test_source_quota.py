"""What one source may occupy, and that no other source notices."""

from typing import Any

import pytest
from msgspec.structs import replace

from gatepost.delivery.accept import EventBatch, take_batch
from gatepost.delivery.inbox.source_quota import SourceLimits
from gatepost.errors import LinkError
from gatepost.events import DeadLetterNotice, EventKind, Receipt, Signal, decode_payload
from gatepost.events.envelope import MAX_JSON_INT
from gatepost.journal import Tx
from gatepost.mailbox import MailboxPolicy
from tests.delivery.forger import Forger
from tests.delivery.mesh import Gate, Mesh

LIMITS = SourceLimits(held_events=5, held_bytes=20_000, pairs=4)


@pytest.fixture
def mesh() -> Mesh:
    """`c` is hostile: it is linked with `b`, and so is `a`."""
    mesh = Mesh("a", "b", "c")
    mesh.link("a", "b")
    mesh.link("c", "b")
    limit_sources(mesh["b"], LIMITS)
    mesh.flow()
    return mesh


def limit_sources(gate: Gate, limits: SourceLimits) -> None:
    gate.core.parts.limits = limits


def usage(gate: Gate, source: str) -> tuple[int, int]:
    """The usage of a source as it is counted, which has to be true."""
    rows = gate.rows("SELECT events, bytes FROM source_usage WHERE source = ?", source)
    true = """SELECT count(*), coalesce(sum(coalesce(length(body), 0)), 0) FROM (
        SELECT source, body FROM held UNION ALL SELECT source, body FROM offered
    ) WHERE source = ?"""
    found: tuple[int, int] = rows[0] if rows else (0, 0)
    assert [found] == gate.rows(true, source)
    return found


def told(gate: Gate, to: str) -> list[str]:
    """What a gate said to another one about its events."""
    said = []
    for event in gate.events():
        if event.to_node_id == to and event.kind == EventKind.SIGNAL:
            signal = decode_payload(event, Signal)
            said.append(f"{signal.signal} {signal.reason}")
        elif event.to_node_id == to:
            receipt = decode_payload(event, Receipt)
            said.append(f"{receipt.status} {receipt.reason or ''}".strip())
    return said


def out_of_turn(count: int, first: int = 2, **fields: Any) -> list[dict[str, Any]]:
    return [{"pair_seq": number, **fields} for number in range(first, first + count)]


# -- events for nobody


@pytest.mark.parametrize("number", [0, 1, 2, MAX_JSON_INT])
def test_events_for_unknown_agents_are_refused_before_anything_is_kept(
    mesh: Mesh, number: int
) -> None:
    b, c = mesh["b"], mesh["c"]
    fields = {
        "pair_seq": number,
        "pair_base": max(1, number - 1),
        "content": b'"' + b"x" * 9999 + b'"',
    }
    Forger(c).emit_many(b, [{**fields, "to_agent_id": f"ghost{n}"} for n in range(50)])
    mesh.flow()
    for table in ("held", "inbox", "inbox_pair", "offered", "mail", "mailbox"):
        assert b.value(f"SELECT count(*) FROM {table}") == 0, table
    assert told(b, "c") == ["refused no_agent"] * 50


def test_an_event_for_an_unknown_agent_is_accepted_once_the_agent_is_there(mesh: Mesh) -> None:
    b, c = mesh["b"], mesh["c"]
    ghost = Forger(c).emit(b, to_agent_id="ghost", pair_seq=1)
    mesh.flow()
    b.do(lambda tx: b.agents.register(tx, "ghost"))
    Forger(c).emit(b, to_agent_id="ghost", pair_seq=1, event_id=ghost)
    mesh.flow()
    assert told(b, "c") == ["refused no_agent", "accepted"]


# -- events that have to wait


@pytest.mark.parametrize("offer", [0, 1])
def test_a_source_holds_so_many_events_and_the_rest_waits_at_the_source(
    mesh: Mesh, offer: int
) -> None:
    a, b, c = mesh["a"], mesh["b"], mesh["c"]
    Forger(c).emit_many(b, out_of_turn(20, offer=offer))
    mesh.flow()
    assert usage(b, "c")[0] == 5
    assert told(b, "c") == ["held quota"] * 15
    assert b.value("SELECT count(*) FROM inbox") == 5
    assert b.core.abuse.counts() == {("c", "quota_exceeded"): 15}
    assert b.incidents("abuse")[0].startswith("c/quota_exceeded@")
    honest = a.send(b).event_id
    mesh.flow()
    assert b.mail() == [honest]


def test_a_source_holds_so_many_bytes(mesh: Mesh) -> None:
    b, c = mesh["b"], mesh["c"]
    Forger(c).emit_many(b, out_of_turn(5, content=b'"' + b"x" * 5_000 + b'"'))
    mesh.flow()
    events, held = usage(b, "c")
    assert 0 < events < 5
    assert held <= 20_000


def test_open_offers_count_too(mesh: Mesh) -> None:
    b, c = mesh["b"], mesh["c"]
    sent = Forger(c).emit_many(b, out_of_turn(8, first=1, offer=1))
    mesh.flow()
    assert usage(b, "c")[0] == 5
    assert told(b, "c").count("held quota") == 3
    Forger(c).emit(b, Signal(signal="withdraw"), kind=EventKind.SIGNAL, ref_event_id=sent[0])
    mesh.flow()
    assert usage(b, "c")[0] == 4


def test_unordered_events_count_too(mesh: Mesh) -> None:
    b, c = mesh["b"], mesh["c"]
    b.dispatcher.policy = replace(MailboxPolicy(), max_pending=1)
    Forger(c).emit_many(b, [{"order": "none"}] * 9)
    mesh.flow()
    assert (len(b.mail()), usage(b, "c")[0]) == (1, 5)


def test_numbers_that_never_come_count_too(mesh: Mesh) -> None:
    b, c = mesh["b"], mesh["c"]
    letters = [
        {
            "kind": EventKind.DEAD_LETTER,
            "content": DeadLetterNotice(reason="expired", pair_seq=number),
            "ref_event_id": c.node.event_ids.next_id(),
        }
        for number in range(2, 20)
    ]
    Forger(c).emit_many(b, letters)
    mesh.flow()
    assert usage(b, "c") == (5, 0)


def test_pairs_of_agents_are_limited(mesh: Mesh) -> None:
    b, c = mesh["b"], mesh["c"]
    closed = [
        {
            "kind": EventKind.SIGNAL,
            "content": Signal(signal="pair_closed", from_agent=f"x{n}", to_agent="B", through=9),
        }
        for n in range(20)
    ]
    Forger(c).emit_many(b, closed)
    sent = [{"source_agent_id": f"y{n}", "pair_seq": 1} for n in range(20)]
    Forger(c).emit_many(b, sent)
    mesh.flow()
    assert b.value("SELECT count(*) FROM inbox_pair") == 4
    assert b.mail() == []
    assert told(b, "c") == ["held quota"] * 20


def test_origins_count_as_pairs_of_the_source_that_names_them(mesh: Mesh) -> None:
    b, c = mesh["b"], mesh["c"]
    origin = c.node.event_ids.next_id()
    named = [
        {"source_agent_id": "y", "origin_node_id": f"n{n}", "origin_event_id": origin}
        for n in range(20)
    ]
    Forger(c).emit_many(b, [{"pair_seq": 1, **each} for each in named])
    mesh.flow()
    assert b.value("SELECT count(*) FROM inbox_pair") == 4
    assert sorted(told(b, "c")) == ["accepted"] * 4 + ["held quota"] * 16


def test_an_honest_source_beyond_its_quota_loses_nothing(mesh: Mesh) -> None:
    """Its messages wait at their sender, and are accepted in order once there is capacity."""
    a, b = mesh["a"], mesh["b"]
    b.dispatcher.policy = replace(MailboxPolicy(), max_pending=1)
    sent = a.send_many(b, 12)
    mesh.flow()
    assert (len(b.mail()), usage(b, "a")[0]) == (1, 5)
    b.dispatcher.policy = MailboxPolicy()
    for _ in range(4):
        b.do(lambda tx: None)
        mesh.clock.advance(301_000)
        a.do(lambda tx: None)
        mesh.flow()
    assert b.mail() == sent
    assert usage(b, "a") == (0, 0)


# -- other tables that a source could grow


def test_requests_for_agents_that_live_elsewhere_are_not_kept(mesh: Mesh) -> None:
    b, c = mesh["b"], mesh["c"]
    asked = [*(f"ghost{n}" for n in range(50)), "A", "B"]
    signals = [Signal(signal="transfer_request", to_agent=agent) for agent in asked]
    Forger(c).emit_many(b, [{"kind": EventKind.SIGNAL, "content": each} for each in signals])
    mesh.flow()
    assert b.rows("SELECT agent, node FROM transfer_request") == [("B", "c")]


def test_a_journal_that_is_restored_again_and_again_is_not_answered_each_time(mesh: Mesh) -> None:
    b, c = mesh["b"], mesh["c"]
    b.send_many(c, 3)
    mesh.flow()
    before = len(b.addressed_to("c"))
    signals = [Signal(signal="restored", text=f"c-{n}", incarnation="b-1") for n in range(2, 102)]
    Forger(c).emit_many(b, [{"kind": EventKind.SIGNAL, "content": each} for each in signals])
    mesh.flow()
    assert len(b.addressed_to("c")) - before < 20


def test_an_outbox_does_not_begin_anew_for_ever(mesh: Mesh) -> None:
    parts = mesh["b"].core.parts

    def take(tx: Tx) -> None:
        for number in range(1001):
            take_batch(parts, tx, EventBatch("c", f"c-{number}", 1, 0, 0, []))

    with pytest.raises(LinkError, match="incarnations"):
        mesh["b"].do(take)
