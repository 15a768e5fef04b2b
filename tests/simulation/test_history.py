"""The checker itself, on histories that are wrong in exactly one way."""

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from simulation.gateways import AgentManners, SimulatedMesh
from simulation.history import (
    RULES,
    Observations,
    ObservedSend,
    ObservedTurn,
    check_history,
    read_journal,
)
from simulation.history.journals import GatewayJournal

PROMPT = AgentManners(think_ms=(1, 5), reply=0.0, nack=0.0, forget=0.0)


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[SimulatedMesh]:
    """Five messages from al to bob, one with a blob, all processed, and both gateways stopped."""
    with SimulatedMesh(seed=1, nodes=2, folder=tmp_path) as mesh:
        mesh.connect_all()
        mesh.add_agent("al", "n0", manners=PROMPT)
        mesh.add_agent("bob", "n1", manners=PROMPT)
        mesh.run(1_000)
        for number in range(5):
            mesh.send("al", "bob", blob_bytes=900 * (number == 2))
            mesh.run(300)
        assert mesh.drain()
        mesh.close()
        yield mesh


def journals(mesh: SimulatedMesh) -> list[GatewayJournal]:
    return [
        read_journal(each.path, each.key.public, each.blob_folder)
        for each in mesh.gateways.values()
    ]


def rules(mesh: SimulatedMesh, seen: Observations | None = None, drained: bool = True) -> set[str]:
    verdict = check_history(journals(mesh), seen or mesh.seen, drained=drained)
    return {violation.rule for violation in verdict.violations}


def tamper(mesh: SimulatedMesh, node: str, *statements: str) -> None:
    connection = apsw.Connection(str(mesh[node].path))
    for trigger in ("outbox_is_append_only", "mail_terminal_is_immutable"):
        connection.execute(f"DROP TRIGGER IF EXISTS {trigger}")
    for statement in statements:
        connection.execute(statement)
    connection.close()


def test_a_clean_history_is_clean(mesh: SimulatedMesh) -> None:
    verdict = check_history(journals(mesh), mesh.seen)
    assert verdict.ok, verdict
    assert (verdict.counts.sent, verdict.counts.processed) == (5, 5)


def test_journals_alone_are_enough(mesh: SimulatedMesh) -> None:
    verdict = check_history([read_journal(each.path) for each in mesh.gateways.values()])
    assert verdict.ok, verdict
    assert verdict.counts.processed == 5


def test_an_acknowledged_send_that_is_nowhere_is_lost(mesh: SimulatedMesh) -> None:
    ghost = ObservedSend("n0", "al", "bob", "k", 0, "01a3185c-6c0b-71d2-92c6-c050e8a28324")
    ghost.result = "acknowledged"
    mesh.seen.sends.append(ghost)
    verdict = check_history(journals(mesh), mesh.seen)
    assert {violation.rule for violation in verdict.violations} == {"kept"}
    assert verdict.counts.lost == 1


def test_two_completed_turns_of_one_event(mesh: SimulatedMesh) -> None:
    turn = next(turn for turn in mesh.seen.turns if turn.result == "ok")
    other = ObservedTurn(
        turn.node, turn.agent, turn.sender, turn.source, turn.event_id, "other", 0, result="ok"
    )
    mesh.seen.turns.append(other)
    verdict = check_history(journals(mesh), mesh.seen)
    assert {violation.rule for violation in verdict.violations} == {"one turn"}
    assert verdict.counts.doubled == 1


Damage = tuple[str, str]
DAMAGES: dict[str, Damage] = {
    "settled": ("n0", "UPDATE delivery SET processed_at = NULL, state = 'emitted'"),
    "same outcome": ("n0", "UPDATE delivery SET outcome = 'failed'"),
    "routed": ("n0", "UPDATE delivery SET node = 'n9'"),
    "accepted": ("n1", "UPDATE mail SET state = 0"),
    "chain": ("n0", "UPDATE outbox SET digest = zeroblob(32) WHERE seq = 2"),
    "told": ("n1", "UPDATE cursor SET seq = 1"),
    "written": ("n1", "UPDATE inbox SET event_id = zeroblob(16) WHERE pair_seq = 2"),
    "complete": ("n1", "DELETE FROM inbox WHERE pair_seq = 2"),
}


@pytest.mark.parametrize("rule", DAMAGES)
def test_what_is_wrong_in_a_journal_is_named(mesh: SimulatedMesh, rule: str) -> None:
    node, statement = DAMAGES[rule]
    tamper(mesh, node, statement)
    mesh.seen.brief = True
    assert rule in rules(mesh)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM outbox WHERE seq = 2",
        "UPDATE head SET signature = zeroblob(64) WHERE last_seq = 1",
        "UPDATE head SET chain = zeroblob(32) WHERE last_seq = 1",
        "DELETE FROM head WHERE last_seq = (SELECT max(last_seq) FROM head)",
    ],
)
def test_a_chain_is_checked_link_by_link(mesh: SimulatedMesh, statement: str) -> None:
    tamper(mesh, "n0", statement)
    assert "chain" in rules(mesh)


def test_what_is_open_is_fine_until_everything_had_time(mesh: SimulatedMesh) -> None:
    tamper(mesh, "n0", *[DAMAGES["settled"][1]])
    assert rules(mesh, drained=False) == set()
    verdict = check_history(journals(mesh), mesh.seen, drained=False)
    assert verdict.counts.waiting == 5


def test_an_absent_owner_excuses_what_waits_for_it(mesh: SimulatedMesh) -> None:
    tamper(mesh, "n0", *[DAMAGES["settled"][1]])
    mesh.seen.absent.add("n1")
    assert rules(mesh) == set()


def test_turns_out_of_order_are_named(mesh: SimulatedMesh) -> None:
    for key, groups in mesh.seen.appended.items():
        if key[0] == "n1":
            moments = sorted((at for _, at in groups), reverse=True)
            lasts = (last for last, _ in groups)
            mesh.seen.appended[key] = list(zip(lasts, moments, strict=True))
    assert rules(mesh) == {"order"}


def test_another_payload_than_was_sent_is_named(mesh: SimulatedMesh) -> None:
    mesh.seen.turns[0].payload = mesh.seen.turns[1].payload
    assert rules(mesh) == {"payload"}


@pytest.fixture
def answered(tmp_path: Path) -> Iterator[SimulatedMesh]:
    """Two questions with large replies: one is mail, a caller waits for the other."""
    replies = AgentManners(think_ms=(1, 5), reply=1.0, large_reply=1.0, nack=0.0, forget=0.0)
    with SimulatedMesh(seed=1, nodes=2, folder=tmp_path) as mesh:
        mesh.connect_all()
        mesh.add_agent("al", "n0", manners=PROMPT)
        mesh.add_agent("bob", "n1", manners=replies)
        mesh.run(1_000)
        mesh.send("al", "bob")
        mesh.send("al", "bob", replies="caller")
        assert mesh.drain()
        mesh.close()
        yield mesh


def test_large_replies_come_back_as_they_were_given(answered: SimulatedMesh) -> None:
    assert rules(answered) == set()
    kept = [found.reply for found in journals(answered)[0].deliveries.values() if found.reply]
    given = [turn.reply for turn in answered.seen.turns if turn.reply]
    assert sorted(kept) == sorted(given)
    assert [turn.kind for turn in answered.seen.turns].count("reply") == 1


def test_another_reply_than_was_given_is_named(answered: SimulatedMesh) -> None:
    (reply,) = (turn for turn in answered.seen.turns if turn.kind == "reply")
    reply.payload = "never given"
    assert rules(answered) == {"payload"}


def test_another_reply_than_was_given_to_a_caller_is_named(answered: SimulatedMesh) -> None:
    tamper(answered, "n0", "UPDATE delivery SET reply = x'31', reply_ref = NULL")
    assert rules(answered) == {"payload"}


def test_a_payload_of_forwarded_mail_has_to_be_one_that_was_sent(mesh: SimulatedMesh) -> None:
    mesh.seen.turns[0].event_id = "another"
    assert rules(mesh) == set()
    mesh.seen.turns[0].payload = "never sent"
    assert rules(mesh) == {"payload"}


def test_a_message_that_was_accepted_before_its_blob_is_named(mesh: SimulatedMesh) -> None:
    mesh.seen.blobs = {key: at + 10_000 for key, at in mesh.seen.blobs.items()}
    assert rules(mesh) == {"blob here"}


def test_a_blob_that_is_not_intact_is_named(mesh: SimulatedMesh) -> None:
    (blob,) = mesh["n1"].blob_folder.iterdir()
    blob.write_bytes(blob.read_bytes()[:-1])
    assert rules(mesh) == {"blob here"}


def test_a_forgery_that_nobody_noticed_is_named(mesh: SimulatedMesh) -> None:
    mesh.seen.forged.append(("n1", "an altered event", True))
    assert rules(mesh) == set()
    mesh.seen.forged.append(("n1", "an altered event", False))
    assert rules(mesh) == {"noticed"}


def test_an_event_that_was_left_out_and_never_came_is_named(mesh: SimulatedMesh) -> None:
    mesh.seen.left_out["n1", "n0", 2] = True
    assert rules(mesh) == set()
    mesh.seen.left_out["n1", "n0", 2] = False
    assert rules(mesh) == {"left out"}


def test_every_rule_is_a_sentence() -> None:
    assert all(sentence[0].islower() and " " in sentence for sentence in RULES.values())
