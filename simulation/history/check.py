"""The checker: one function per rule, over all journals at once."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from gatepost.ledger import Ledger, make_ledger
from simulation.history.histories import CheckedMesh, EventHistory
from simulation.history.journals import ACKED, DEAD, EXPIRED, GatewayJournal
from simulation.history.link_rules import LINK_RULES
from simulation.history.task_rules import TASK_RULES
from simulation.history.verdict import (
    HistoryVerdict,
    HistoryViolation,
    Observations,
    OutcomeCounts,
)


def check_history(
    journals: Sequence[GatewayJournal], seen: Observations | None = None, *, drained: bool = True
) -> HistoryVerdict:
    """Check every rule. `drained`: all was healed and had time, so nothing may be open."""
    mesh = CheckedMesh(journals, seen or Observations(), drained)
    violations = [found for rule in _RULES for found in rule(mesh)]
    amended = [history.id for history in mesh.histories.values() if _is_amended(history)]
    counts, reasons = _count_outcomes(mesh), _count_reasons(mesh)
    return HistoryVerdict(counts, violations, amended, reasons, _make_ledger(mesh))


# -- the rules


def _check_kept(mesh: CheckedMesh) -> Iterator[HistoryViolation]:
    for send in mesh.seen.sends:
        if send.result != "acknowledged" or send.node in mesh.seen.restored:
            continue
        if (send.node, send.event_id) not in mesh.histories:
            yield HistoryViolation(
                "kept", send.node, send.event_id, f"{send.sender} to {send.target}"
            )


def _check_settled(mesh: CheckedMesh) -> Iterator[HistoryViolation]:
    for history in mesh.histories.values() if mesh.drained else ():
        exempt = history.involves(mesh.seen.absent) or history.source in mesh.seen.lost
        if _is_waiting(history) and not exempt:
            state = history.delivery.state if history.delivery else "unknown"
            where = history.delivery.node if history.delivery else None
            detail = f"it is {state}, routed to {where}"
            yield HistoryViolation("settled", history.source, history.id, detail)


def _check_one_end(mesh: CheckedMesh) -> Iterator[HistoryViolation]:
    for history in mesh.histories.values():
        ends = history.processed_receipts()
        if len(ends) > 1 and not mesh.is_excused(history):
            said = ", ".join(f"{end.node}: {end.outcome}" for end in ends)
            yield HistoryViolation("one end", history.source, history.id, said)
        outcomes = {(s.node, s.outcome) for s in history.receipts if s.status == "processed"}
        outcomes -= {each for each in outcomes if mesh.is_amended_forward(history, *each, outcomes)}
        nodes = {node for node, _ in outcomes if node in history.routes}
        if len(nodes) < len([each for each in outcomes if each[0] in nodes]):
            yield HistoryViolation(
                "one end", history.source, history.id, f"ended in two ways: {outcomes}"
            )


def _check_one_turn(mesh: CheckedMesh) -> Iterator[HistoryViolation]:
    acked: dict[tuple[str, str], set[str]] = defaultdict(set)
    for journal in mesh.journals.values():
        for mail in journal.mail:
            if mail.state == ACKED:
                acked[mail.event_id, mail.mailbox].add(journal.node)
    for (id, mailbox), nodes in acked.items():
        if len(nodes) > 1:
            detail = f"{mailbox} completed it on {sorted(nodes)}"
            yield HistoryViolation("one turn", min(nodes), id, detail)
    for (source, id), turns in mesh.completed.items():
        if len(turns) > 1:
            yield HistoryViolation("one turn", source, id, f"completed turns: {sorted(turns)}")


def _check_order(mesh: CheckedMesh) -> Iterator[HistoryViolation]:
    """Order the turns by the receipts that ended them. Messages without order have no number.

    A turn with forwarded mail has the number that the message got first, at the gateway where its
    sender lived: however often the mail was forwarded, it must not be overtaken. A pair goes on
    without a message that one of its gateways gave up, even if its turn comes after all.
    """
    pairs: dict[tuple[str, str, str | None], list[tuple[int, int, str, int, str]]] = defaultdict(
        list
    )
    for history in mesh.histories.values():
        journey = mesh.journey(history)
        if any(each.given_up is not None or mesh.is_excused(each) for each in journey):
            continue
        origin = journey[-1]
        first = origin.first
        if first.origin_node_id in mesh.seen.restored:
            # The gateway that numbered this message has lost its memory of it.
            continue
        for said in history.processed_receipts():
            # An answer that a request waits for ends without a turn; forwarded mail ends with the
            # turn it had at another gateway.
            passed_on = (history.source, history.id) in mesh.journals[said.node].forwarded
            is_turn = said.outcome == "ok" and history.id in mesh.acked[said.node] and not passed_on
            if is_turn and first.pair_seq:
                ended_at = (mesh.time_on_disk(said.node, said.event), said.event.seq, said.node)
                key = (origin.source, first.source_agent_id, first.to_agent_id)
                pairs[key].append((*ended_at, first.pair_seq, origin.id))
    for (source, sender, target), ended in pairs.items():
        highest = 0
        for at, _, node, number, id in sorted(ended):
            if number < highest:
                detail = f"{sender} to {target}: {number} ended on {node} at {at}, after {highest}"
                yield HistoryViolation("order", source, id, detail)
            highest = max(highest, number)


def _check_due(mesh: CheckedMesh) -> Iterator[HistoryViolation]:
    for turn in mesh.seen.turns:
        if turn.clock < turn.not_before:
            detail = f"{turn.agent} began it {turn.not_before - turn.clock} ms early"
            yield HistoryViolation("due", turn.node, turn.event_id, detail)


def _check_same_outcome(mesh: CheckedMesh) -> Iterator[HistoryViolation]:
    for history in mesh.histories.values():
        delivery = history.delivery
        if delivery is None or mesh.is_excused(history):
            continue
        is_amended = delivery.verdict is not None and delivery.state in ("processed", "replied")
        if history.given_up is not None and delivery.state != "dead_letter" and not is_amended:
            detail = f"the sender gave it up, and says {delivery.state}"
            yield HistoryViolation("same outcome", history.source, history.id, detail)
        ends = {end.node: end.outcome for end in history.last_receipts()}
        if delivery.state == "processed" and ends.get(delivery.node or "") != delivery.outcome:
            detail = f"the sender says {delivery.outcome}, of its owners {ends}"
            yield HistoryViolation("same outcome", history.source, history.id, detail)
        if delivery.state == "replied" and ends.get(delivery.node or "") != "ok":
            detail = f"the sender has a reply, the owners say {ends}"
            yield HistoryViolation("same outcome", history.source, history.id, detail)


def _check_routed(mesh: CheckedMesh) -> Iterator[HistoryViolation]:
    for history in mesh.histories.values():
        delivery = history.delivery
        if delivery is None or delivery.state not in (
            "accepted",
            "processed",
            "replied",
            "incident",
        ):
            continue
        if mesh.is_excused(history):
            continue
        node = delivery.node or ""
        said = {receipt.status for receipt in history.receipts if receipt.node == node}
        backed = said & {"accepted", "processed"} or node in history.answered_by
        if node not in history.routes or not backed:
            detail = f"it is {delivery.state} at {node}, which said {sorted(said)}"
            yield HistoryViolation("routed", history.source, history.id, detail)


def _check_confirmed(mesh: CheckedMesh) -> Iterator[HistoryViolation]:
    for history in mesh.histories.values():
        for end in history.processed_receipts():
            unsure = end.node in history.offered and end.node not in history.confirmed
            if unsure and not mesh.is_excused(history) and end.node not in history.given:
                yield HistoryViolation(
                    "confirmed", end.node, history.id, "engaged without a confirmation"
                )


def _check_accepted(mesh: CheckedMesh) -> Iterator[HistoryViolation]:
    """Check both sides: the receipts, and the mail itself."""
    for history in mesh.histories.values() if mesh.drained else ():
        ended = {end.node for end in history.processed_receipts()}
        silent = mesh.seen.absent | mesh.seen.lost
        excused = mesh.is_excused(history) or history.source in mesh.seen.lost
        for node in history.accepting_nodes() - ended - silent:
            if not excused:
                yield HistoryViolation(
                    "accepted", node, history.id, "accepted for good, and then nothing"
                )
    for journal in mesh.journals.values() if mesh.drained else ():
        for mail in journal.mail:
            silent = mesh.seen.absent | mesh.seen.lost
            if mail.state not in (ACKED, DEAD, EXPIRED) and journal.node not in silent:
                detail = f"still in the mailbox of {mail.mailbox}"
                yield HistoryViolation("accepted", journal.node, mail.event_id, detail)


def _check_amended(mesh: CheckedMesh) -> Iterator[HistoryViolation]:
    for history in mesh.histories.values() if mesh.drained else ():
        delivery = history.delivery
        if not _is_amended(history) or delivery is None or mesh.is_excused(history):
            continue
        heard = [end for end in history.processed_receipts() if end.node not in mesh.seen.lost]
        if delivery.verdict is None and heard and history.source not in mesh.seen.lost:
            ends = [f"{end.node}: {end.outcome}" for end in heard]
            yield HistoryViolation(
                "amended", history.source, history.id, f"nothing is noted of {ends}"
            )
        silent = mesh.seen.lost | mesh.seen.revoked
        said = {end.node: end.outcome for end in history.last_receipts()}
        node = delivery.node or ""
        is_wrong = delivery.state == "dead_letter" and node in said.keys() - silent
        if is_wrong and history.source not in silent:
            detail = f"it is a dead letter, and {node} says {said[node]}"
            yield HistoryViolation("amended", history.source, history.id, detail)


def _check_truthful(mesh: CheckedMesh) -> Iterator[HistoryViolation]:
    """A gateway that is lost or was restored cannot give its word in time.

    A message that was never sent expires by its sender's clock alone. If that is set back, the
    message that its reader finds later has not expired.
    """
    for history in mesh.histories.values() if mesh.seen.brief and not mesh.seen.hasty else ():
        reason = history.given_up.read_payload()["reason"] if history.given_up else ""
        done = [end.node for end in history.processed_receipts() if end.outcome == "ok"]
        silent = mesh.is_excused(history) or history.involves(mesh.seen.lost)
        silent |= history.source in mesh.seen.set_back
        if reason == "expired" and done and not silent and history.first.kind != "reply":
            detail = f"the sender was told that it expired, and {done} processed it"
            yield HistoryViolation("truthful", history.source, history.id, detail)


def _check_deserved(mesh: CheckedMesh) -> Iterator[HistoryViolation]:
    for history in mesh.histories.values() if mesh.seen.brief else ():
        reason = history.given_up.read_payload()["reason"] if history.given_up else ""
        excuse = mesh.is_excused(history) and reason in _LOST
        excuse |= reason == "owner_revoked" and history.involves(mesh.seen.revoked)
        # Nobody waits for a gateway that is known to be gone.
        excuse |= reason == "abandoned" and _may_be_abandoned(mesh, history)
        if reason in ("exhausted", *_LOST, *_NEVER_BACK) and not excuse:
            yield HistoryViolation("deserved", history.source, history.id, f"given up: {reason}")


def _may_be_abandoned(mesh: CheckedMesh, history: EventHistory) -> bool:
    """Whether it went to a gateway that lost its memory, or itself, perhaps through another one.

    Nobody waits that long for a revoked one.
    """
    silent = (mesh.seen.lost - mesh.seen.revoked) | mesh.seen.restored
    forwarded = any(
        (history.source, history.id) in journal.forwarded for journal in mesh.journals.values()
    )
    return history.involves(silent) or bool(forwarded and (silent | mesh.seen.lost))


_LOST = ("owner_lost_it", "owner_restored")
_NEVER_BACK = ("owner_revoked", "abandoned")


def _check_calm(mesh: CheckedMesh) -> Iterator[HistoryViolation]:
    for node, what in mesh.seen.surprises:
        yield HistoryViolation("calm", node, "", what)


_RULES = (
    _check_kept,
    _check_settled,
    _check_one_end,
    _check_one_turn,
    _check_order,
    _check_due,
    _check_same_outcome,
    _check_routed,
    _check_confirmed,
    _check_accepted,
    _check_amended,
    _check_truthful,
    _check_deserved,
    _check_calm,
    *LINK_RULES,
    *TASK_RULES,
)


# -- the truth table


def _is_waiting(history: EventHistory) -> bool:
    if history.delivery is None:
        # A reply that was settled as it was sent has no delivery of its own.
        return not history.processed_receipts() and history.given_up is None
    return not history.delivery.closed


def _is_processed(history: EventHistory) -> bool:
    if history.delivery is None:
        return any(end.outcome in ("ok", "kept") for end in history.processed_receipts())
    return history.delivery.outcome in ("ok", "kept")


def _is_amended(history: EventHistory) -> bool:
    return history.given_up is not None and bool(history.processed_receipts())


def _count_outcomes(mesh: CheckedMesh) -> OutcomeCounts:
    truth = OutcomeCounts(sent=len(mesh.histories))
    for key, history in mesh.histories.items():
        ends = history.processed_receipts()
        if _is_waiting(history):
            truth.waiting += 1
        elif _is_processed(history):
            truth.processed += 1
        else:
            truth.dead_lettered += 1
        truth.amended += _is_amended(history)
        truth.task_requests += history.first.kind in ("task_create", "task_cancel")
        oks = {end.node for end in ends if end.outcome == "ok"}
        truth.doubled += max(len(oks), len(mesh.completed.get(key, ()))) > 1
    for send in mesh.seen.sends:
        if send.result == "acknowledged" and (send.node, send.event_id) not in mesh.histories:
            truth.sent += 1
            if send.node in mesh.seen.restored:
                truth.rewound += 1
            else:
                truth.lost += 1
    for journal in mesh.journals.values():
        created = [task for task in journal.tasks.values() if task.requester_node is None]
        truth.tasks += len(created)
        truth.tasks_completed += sum(task.state == "completed" for task in created)
    return truth


def _make_ledger(mesh: CheckedMesh) -> Ledger:
    sent = []
    for history in mesh.histories.values():
        delivery = history.delivery
        is_forwarded = history.id in mesh.journals[history.source].stands_for
        if delivery is not None and history.first.kind != "reply" and not is_forwarded:
            reason = history.given_up.read_payload()["reason"] if history.given_up else None
            sent.append((delivery.state, delivery.outcome, reason, 1))
    return make_ledger(sent)


def _count_reasons(mesh: CheckedMesh) -> dict[str, int]:
    reasons: Counter[str] = Counter()
    for history in mesh.histories.values():
        if history.given_up is not None:
            reasons[history.given_up.read_payload()["reason"]] += 1
        else:
            reasons.update(
                str(end.outcome)
                for end in history.processed_receipts()
                if end.outcome not in ("ok", "kept")
            )
    return dict(reasons)
