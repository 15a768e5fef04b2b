"""What a person can do from the terminal: each is a call of the API, and the command for it."""

import shlex
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Raw, Struct

from gatepost.wire.gateway_views import MailboxCounts, Undelivered
from gatepost.wire.operations import DeadLetter
from gatepost.wire.overview_views import Need
from gatepost.wire.report_views import IncidentView
from gatepost.wire.tasks import TaskView


class Action(Struct, frozen=True):
    """`key` starts it, in write mode, and `question` is asked before it is done.

    `command` does the same. Without a `path` there is only the command, for a person to complete.
    """

    key: str
    label: str
    question: str
    command: tuple[str, ...]
    path: str = ""
    method: str = "POST"
    body: Raw = Raw(b"{}")

    def command_text(self, scope: tuple[str, ...]) -> str:
        """The command; `scope` are the options that name this gateway."""
        return shlex.join((*self.command, *scope))


def replay_letter(letter: DeadLetter) -> Action:
    return Action(
        "r",
        "replay",
        f"Send the dead letter {letter.msg_id} of {letter.to} again?",
        ("gatepost", "dlq", "replay", letter.to, letter.msg_id),
        f"{_letters_path(letter.to)}/replay",
        body=_encode(msg_ids=[letter.msg_id]),
    )


def replay_all_letters(agent: str) -> Action:
    return Action(
        "R",
        "replay all",
        f"Send all dead letters of {agent} again that were not replayed before?",
        ("gatepost", "dlq", "replay", agent, "--all"),
        f"{_letters_path(agent)}/replay",
    )


def discard_letter(letter: DeadLetter) -> Action:
    return Action(
        "d",
        "discard",
        f"Discard the dead letter {letter.msg_id} of {letter.to} for good?",
        ("gatepost", "dlq", "discard", letter.to, letter.msg_id, "--yes"),
        f"{_letters_path(letter.to)}/discard",
        body=_encode(msg_ids=[letter.msg_id]),
    )


def replay_message(message: Undelivered) -> Action:
    risk = "" if message.safe else " Its last owner may have processed it: then it is refused."
    return Action(
        "r",
        "replay",
        f"Send {message.event_id} to {message.to_agent} again?{risk}",
        ("gatepost", "undelivered", "replay", message.event_id),
        "/v1/undelivered/replay",
        body=_encode(event_ids=[message.event_id]),
    )


def discard_message(message: Undelivered) -> Action:
    return Action(
        "d",
        "discard",
        f"Discard the undelivered message {message.event_id} for good?",
        ("gatepost", "undelivered", "discard", message.event_id, "--yes"),
        "/v1/undelivered/discard",
        body=_encode(event_ids=[message.event_id]),
    )


def purge_mailbox(box: MailboxCounts) -> Action:
    return Action(
        "p",
        "purge",
        f"Turn all waiting mail of {box.name} into dead letters?",
        ("gatepost", "purge", box.name, "--yes"),
        f"/v1/mailboxes/{quote(box.name, safe='')}",
        "DELETE",
    )


def cancel_task(task: TaskView) -> Action:
    return Action(
        "c",
        "cancel",
        f"Cancel the task {task.id} of {task.agent_name}?",
        ("gatepost", "task", "cancel", task.id),
        f"/api/hub/tasks/{quote(task.id, safe='')}/cancel",
        body=_encode(reason=""),
    )


def resolve_incident(incident: IncidentView) -> Action:
    return Action(
        "r",
        "resolve",
        f"Mark the incident {incident.class_} ({incident.subject}) as resolved?",
        ("gatepost", "incidents", "--resolve", incident.id),
        "/v1/incidents/resolve",
        body=_encode(id=incident.id),
    )


def do_what_is_needed(need: Need) -> Action:
    action = need.action
    question = f"{action.label}: {need.text}?" if action.path else f"{need.text}. The command:"
    return Action(
        "a",
        action.label.lower(),
        question,
        tuple(action.command.split()),
        action.path,
        action.method,
        action.body,
    )


def _letters_path(agent: str) -> str:
    return f"/v1/mailboxes/{quote(agent, safe='')}/dead-letters"


def _encode(**body: Any) -> Raw:
    return Raw(msgspec.json.encode(body))
