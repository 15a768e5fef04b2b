"""Signals and dead letters of a sender, about events that are held, offered or accepted."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from gatepost.delivery.decisions import Decision, TransferSignal
from gatepost.delivery.intake import Intake
from gatepost.delivery.signals import apply_dead_letter, apply_signal, expire_event
from gatepost.events import (
    DeadLetterNotice,
    Envelope,
    EventKind,
    Receipt,
    Signal,
    decode_payload,
    parse_event_id,
)
from gatepost.journal import Tx
from gatepost.mailbox import MailboxPolicy
from tests.delivery.mesh import Gate, Mesh


class Scene:
    """Gateway b has accepted event 1 of a pair, and holds events 2 and 3."""

    def __init__(self) -> None:
        self.mesh = Mesh("a", "b")
        self.mesh.link("a", "b")
        self.mesh.flow()
        self.b: Gate = self.mesh["b"]
        self.b.dispatcher.policy = replace(MailboxPolicy(), max_pending=1)
        self.accepted, self.held, self.behind = self.mesh["a"].send_many(self.b, 3)
        self.mesh.flow()
        self.before = len(self.b.events())

    def read(self, work: Callable[[Intake, Tx, Envelope], None], ref: str | None) -> list[Decision]:
        """Let b read an event of a that refers to another one."""
        envelope = Envelope(
            event_id=self.b.node.event_ids.next_id(),
            seq=99,
            source_node_id="a",
            to_node_id="b",
            source_agent_id="A",
            to_agent_id="B",
            kind=EventKind.SIGNAL,
            created_at=0,
            ref_event_id=ref,
        )

        def operation(tx: Tx) -> list[Decision]:
            intake = Intake(self.b.core.parts, "a", "a-1", tx.now)
            work(intake, tx, envelope)
            return intake.finish(tx)

        decisions: list[Decision] = self.b.do(operation)
        return decisions

    def signal(self, name: str, ref: str | None, **fields: Any) -> list[Decision]:
        signal = Signal(signal=name, **fields)
        return self.read(
            lambda intake, tx, envelope: apply_signal(intake, tx, envelope, signal), ref
        )

    def states(self) -> list[str]:
        return [row[0] for row in self.b.rows("SELECT state FROM inbox ORDER BY pair_seq")]

    def next_number(self) -> int:
        return int(self.b.value("SELECT next FROM inbox_pair"))

    def receipts(self) -> list[tuple[str | None, str, str | None]]:
        said = [
            (e.ref_event_id, decode_payload(e, Receipt)) for e in self.b.events()[self.before :]
        ]
        return [(ref, receipt.status, receipt.reason) for ref, receipt in said]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_withdrawn_event_opens_its_number_again(scene: Scene) -> None:
    assert scene.next_number() == 2
    scene.signal("withdraw", scene.held)
    assert scene.states() == ["accepted", "withdrawn", "held"]
    assert (scene.next_number(), scene.receipts()) == (2, [])


def test_an_accepted_event_cannot_be_withdrawn(scene: Scene) -> None:
    scene.signal("withdraw", scene.accepted)
    assert scene.states() == ["accepted", "held", "held"]


def test_a_confirmation_without_an_offer_changes_nothing(scene: Scene) -> None:
    for ref in (scene.accepted, scene.held, scene.b.node.event_ids.next_id()):
        scene.signal("confirm", ref)
    assert scene.states() == ["accepted", "held", "held"]


def test_a_dead_letter_lets_go_of_a_held_event_and_says_so(scene: Scene) -> None:
    letter = DeadLetterNotice(reason="expired", detail="", attempts=1, pair_seq=2)
    scene.read(
        lambda intake, tx, envelope: apply_dead_letter(intake, tx, envelope, letter), scene.held
    )
    assert scene.states() == ["accepted", "withdrawn", "held"]
    assert scene.receipts() == [(scene.held, "refused", "given_up")]
    assert scene.next_number() == 3, "the pair goes on without it"


def test_an_event_that_expires_here_is_let_go_too(scene: Scene) -> None:
    held = parse_event_id(scene.held)
    scene.read(lambda intake, tx, envelope: expire_event(intake, tx, held), None)
    assert scene.states() == ["accepted", "withdrawn", "held"]
    assert scene.receipts() == [(scene.held, "refused", "expired")]


def test_a_status_request_is_answered_with_what_the_inbox_says(scene: Scene) -> None:
    unknown = scene.b.node.event_ids.next_id()
    scene.signal("status_request", unknown)
    scene.signal("status_request", scene.accepted)
    scene.signal("withdraw", scene.behind)
    scene.signal("status_request", scene.behind)
    assert scene.receipts() == [
        (unknown, "refused", "unknown: it is not in this journal"),
        (scene.behind, "refused", "withdrawn"),
    ], "the turn with the accepted event has not ended"


def test_a_closed_pair_goes_on_behind_the_numbers_that_never_come(scene: Scene) -> None:
    scene.signal("withdraw", scene.held)
    scene.b.dispatcher.policy = MailboxPolicy()
    scene.signal("pair_closed", None, from_agent="A", to_agent="B", through=2)
    assert scene.states() == ["accepted", "withdrawn", "accepted"]


def test_a_restored_sender_decides_nothing_about_a_number_that_was_refused(scene: Scene) -> None:
    """It asks about a held event, so nothing before that one comes any more."""
    scene.signal("withdraw", scene.held)
    scene.b.connection.execute("UPDATE inbox_pair SET refused = 2")
    scene.b.dispatcher.policy = MailboxPolicy()
    scene.signal("status_request", scene.behind)
    assert scene.states() == ["accepted", "withdrawn", "accepted"]


def test_a_signal_about_an_agent_is_passed_on(scene: Scene) -> None:
    decisions = scene.signal("transfer_request", None, to_agent="B")
    assert decisions == [TransferSignal("a", Signal(signal="transfer_request", to_agent="B"))]


def test_a_signal_that_closes_very_many_numbers_costs_no_more_than_another(scene: Scene) -> None:
    """Also if events are held between them."""
    scene.signal("withdraw", scene.held)
    scene.signal("pair_closed", None, from_agent="A", to_agent="B", through=2**53 - 1)
    assert scene.b.value("SELECT count(*) FROM held") == 1
    scene.b.dispatcher.policy = MailboxPolicy()
    scene.signal("pair_closed", None, from_agent="A", to_agent="B", through=1)
    assert (scene.states(), scene.next_number()) == (["accepted", "withdrawn", "accepted"], 2**53)
