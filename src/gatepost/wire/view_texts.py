"""How commands and the terminal UI put peers, tasks and the steps of messages into words."""

from collections.abc import Set

from gatepost.display_text import format_age, format_count, format_time
from gatepost.wire.gateway_views import PeerStatus
from gatepost.wire.overview_views import NodeLedger
from gatepost.wire.report_views import JourneyStep
from gatepost.wire.tasks import TaskView

_STEP_TEXTS: dict[str, str] = {
    "sent": "{kind} by {agent} to {to}{where}",
    "sent_again": "sent again{where} ({detail})",
    "held": "held for {to}: {detail}",
    "offered": "offer to {to} taken",
    "taken": "taken for {to}",
    "withdrawn": "taken back by {peer}",
    "accepted": "accepted by {agent}",
    "refused": "refused by {agent}: {detail}",
    "heard_accepted": "knows that {peer} accepted it",
    "confirm": "confirmed to {peer}",
    "withdraw": "withdrawn from {peer}",
    "status_request": "asked {peer} for its receipts",
    "report_request": "asked {peer} what became of the task",
    "waiting": "waits in {to}'s mailbox ({detail})",
    "in_hand": "leased to {to} ({detail})",
    "backing_off": "failed; waits for its next turn ({detail})",
    "turn_ended": "{to}'s turn ended ({detail})",
    "turn_failed": "became a dead letter of {to} ({detail})",
    "forwarded": "forwarded {detail}",
    "processed": "processed by {agent}: {detail}",
    "heard_processed": "knows that {peer} processed it: {detail}",
    "given_up": "given up: {detail}",
    "verdict": "{peer} reported later: {detail}",
    "missed": "{detail} events came too fast to be told",
    "amended": "its end is amended: {detail}",
}
# A reply without a turn is kept for the sender of its message.
_KEPT_TEXTS = {"processed": "kept for {agent}", "heard_processed": "knows that {peer} keeps it"}


def describe_waiting(peer: PeerStatus, now_ms: int) -> str:
    """The messages that have no receipt of it, and those whose turns have not ended."""
    if not peer.waiting and not peer.accepted:
        return ""
    since = "" if peer.waiting_since is None else f" for {format_age(peer.waiting_since, now_ms)}"
    waiting = f"{format_count(peer.waiting, 'message')}{since}" if peer.waiting else ""
    accepted = f"{peer.accepted} accepted there, not processed yet" if peer.accepted else ""
    return ", ".join(filter(None, (waiting, accepted)))


def describe_unknown(node: NodeLedger, now_ms: int) -> str:
    """What the ledger has of a gateway that does not tell how it stands now."""
    if node.at is None:
        return f"without {node.node}, which is unknown: {node.problem}"
    return f"{node.node} as it was {format_age(node.at, now_ms)} ago: {node.problem}"


def describe_task_status(task: TaskView) -> str:
    if task.unknown_until is not None:
        until = format_time(task.unknown_until)
        return f"unknown, waiting for {task.executor_node} until {until}"
    return f"{task.status} ({task.error_code})" if task.error_code else task.status


def describe_step(step: JourneyStep, replies: Set[str] = frozenset()) -> str:
    """What happened, in words. `replies` are the ids of the events that are replies."""
    texts = _STEP_TEXTS if step.detail != "kept" else _STEP_TEXTS | _KEPT_TEXTS
    words = texts.get(step.what, f"{step.what} {step.detail}")
    kind = "sent" if step.kind == "message" else step.kind
    where = f" at {step.peer}" if step.peer not in ("", step.node) else ""
    said = words.format(
        kind=kind,
        agent=step.agent,
        to=step.to_agent,
        peer=step.peer or "nobody",
        where=where,
        detail=step.detail,
    )
    is_reply = step.event_id in replies and step.what != "sent"
    return f"reply {said}" if is_reply else said
