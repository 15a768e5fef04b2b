"""What a person can do from the dashboard. Each action is confirmed, written to the audit log, and
shows the command that does the same.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote

import msgspec
from msgspec import Struct

from gatepost.errors import InvalidRequest
from gatepost.web.api_calls import ApiCalls
from gatepost.wire.overview_views import Need, NeedList

Given = Mapping[str, str]


class ActionCall(Struct, frozen=True):
    """What an action is about to do: in words, as a command, and as a call of the API."""

    title: str
    text: str
    command: str
    method: str
    path: str
    body: bytes
    is_danger: bool = False


class Field(Struct, frozen=True):
    """What the confirmation asks for."""

    name: str
    label: str
    is_long: bool = False
    is_required: bool = False


class Action(Struct, frozen=True):
    """`plan` makes the call from what was given. `fields` are asked for in the confirmation."""

    plan: Callable[[Given], ActionCall]
    fields: tuple[Field, ...] = ()


def _need(given: Given, name: str) -> str:
    value = given.get(name, "").strip()
    if not value:
        raise InvalidRequest(f"the action lacks its `{name}`")
    return value


def _json(**fields: Any) -> bytes:
    return msgspec.json.encode({name: value for name, value in fields.items() if value is not None})


def _part(text: str) -> str:
    return quote(text, safe="")


def quote_argument(text: str) -> str:
    """An argument as one types it in a shell."""
    if text and all(char.isalnum() or char in "@%+=:,./_-" for char in text):
        return text
    return "'" + text.replace("'", "'\"'\"'") + "'"


def _letters(given: Given) -> tuple[str, dict[str, Any], str]:
    """The mailbox, the filter and the arguments that dead letters are chosen by."""
    mailbox = _need(given, "mailbox")
    chosen: dict[str, Any] = {}
    arguments = quote_argument(mailbox)
    if given.get("id"):
        chosen["msg_ids"] = [given["id"]]
        arguments += f" {quote_argument(given['id'])}"
    for name, option in (("sender", "--sender"), ("reason_contains", "--reason-contains")):
        if given.get(name):
            chosen[name] = given[name]
            arguments += f" {option} {quote_argument(given[name])}"
    if not chosen:
        arguments += " --all"
    return mailbox, chosen, arguments


def _replay(given: Given) -> ActionCall:
    mailbox, chosen, arguments = _letters(given)
    which = "one dead letter" if "msg_ids" in chosen else "dead letters"
    return ActionCall(
        "Replay",
        f"Send {which} of {mailbox} again, as new turns.",
        f"gatepost dlq replay {arguments}",
        "POST",
        f"/v1/mailboxes/{_part(mailbox)}/dead-letters/replay",
        _json(**chosen, replayed=False),
    )


def _discard(given: Given) -> ActionCall:
    mailbox, chosen, arguments = _letters(given)
    which = "one dead letter" if "msg_ids" in chosen else "dead letters"
    return ActionCall(
        "Discard",
        f"Give up {which} of {mailbox} for good.",
        f"gatepost dlq discard {arguments} --yes",
        "POST",
        f"/v1/mailboxes/{_part(mailbox)}/dead-letters/discard",
        _json(**chosen),
        True,
    )


def _undelivered(given: Given) -> tuple[dict[str, Any], str]:
    if given.get("id"):
        return {"event_ids": [given["id"]]}, quote_argument(given["id"])
    return {}, "--all"


def _replay_undelivered(given: Given) -> ActionCall:
    chosen, arguments = _undelivered(given)
    return ActionCall(
        "Replay",
        "Send undelivered messages again, where no gateway can have taken their turn.",
        f"gatepost undelivered replay {arguments}",
        "POST",
        "/v1/undelivered/replay",
        _json(**chosen),
    )


def _discard_undelivered(given: Given) -> ActionCall:
    chosen, arguments = _undelivered(given)
    return ActionCall(
        "Discard",
        "Give up undelivered messages for good.",
        f"gatepost undelivered discard {arguments} --yes",
        "POST",
        "/v1/undelivered/discard",
        _json(**chosen),
        True,
    )


def _give_up(given: Given) -> ActionCall:
    node = _need(given, "node")
    return ActionCall(
        "Give up",
        f"Give up the messages that wait for {node}: they become undelivered, and can be replayed.",
        f"gatepost undelivered give-up --node {quote_argument(node)} --yes",
        "POST",
        "/v1/undelivered/give-up",
        _json(node=node),
        True,
    )


def _resolve_incident(given: Given) -> ActionCall:
    id, note = _need(given, "id"), given.get("note", "")
    return ActionCall(
        "Resolve",
        f"Note that the incident {id} was dealt with.",
        f"gatepost incidents --resolve {quote_argument(id)}{_note(note)}",
        "POST",
        "/v1/incidents/resolve",
        _json(id=id, note=note),
    )


def _close_review(status: str, verb: str) -> Callable[[Given], ActionCall]:
    def plan(given: Given) -> ActionCall:
        id, note = _need(given, "id"), given.get("note", "")
        return ActionCall(
            verb.capitalize(),
            f"Note that the review {id} is {status}.",
            f"gatepost reviews {verb} {quote_argument(id)}{_note(note)}",
            "POST",
            f"/v1/reviews/{_part(id)}/{verb}",
            _json(note=note),
        )

    return plan


def _note(note: str) -> str:
    return f" --note {quote_argument(note)}" if note else ""


def _cancel_task(given: Given) -> ActionCall:
    id = _need(given, "id")
    return ActionCall(
        "Cancel task",
        f"Cancel the task {id}. Its session is stopped.",
        f"gatepost task cancel {quote_argument(id)}",
        "POST",
        f"/api/hub/tasks/{_part(id)}/cancel",
        _json(reason="cancelled from the dashboard"),
        True,
    )


def _revoke(given: Given) -> ActionCall:
    node = _need(given, "node")
    return ActionCall(
        "Revoke",
        f"Revoke {node} for good. Its key never counts again; a machine that is back joins anew.",
        f"gatepost revoke {quote_argument(node)}",
        "POST",
        f"/v1/room/nodes/{_part(node)}/revoke",
        _json(reason=given.get("reason") or "revoked from the dashboard"),
        True,
    )


def _release(given: Given) -> ActionCall:
    return ActionCall(
        "Hand over",
        "Hand the lease of the mesh over: another gateway becomes the publisher.",
        "gatepost mesh release",
        "POST",
        "/v1/mesh/release",
        b"",
    )


def _reroute(given: Given) -> ActionCall:
    agent, node = _need(given, "agent"), _need(given, "fallback")
    return ActionCall(
        "Re-route",
        f"While the gateway of {agent} is away, {node} takes its mail.",
        f"gatepost route set {quote_argument(agent)} --fallback {quote_argument(node)}",
        "PUT",
        f"/v1/room/routes/{_part(agent)}",
        _json(fallbacks=[node]),
    )


def _purge(given: Given) -> ActionCall:
    mailbox = _need(given, "mailbox")
    return ActionCall(
        "Purge",
        f"Turn all waiting mail of {mailbox} into dead letters.",
        f"gatepost purge {quote_argument(mailbox)} --yes",
        "DELETE",
        f"/v1/mailboxes/{_part(mailbox)}",
        b"",
        True,
    )


def _send(given: Given) -> ActionCall:
    agent, text = _need(given, "agent"), _need(given, "text")
    to: dict[str, Any] = {"to_agents": "*"} if agent == "*" else {"to_agent": agent}
    subject = given.get("subject") or None
    argument = "--broadcast" if agent == "*" else quote_argument(agent)
    options = f" --subject {quote_argument(subject)}" if subject else ""
    return ActionCall(
        "Send",
        "Send this message to every agent." if agent == "*" else f"Send this message to {agent}.",
        f"gatepost send {argument} {quote_argument(text)} --from {SENDER}{options}",
        "POST",
        "/v1/messages",
        _json(from_agent=SENDER, payload=text, subject=subject, **to),
    )


SENDER: Final = "cli"
_NOTE: Final = (Field("note", "A note for the audit log"),)
ACTIONS: Final[Mapping[str, Action]] = {
    "replay": Action(_replay),
    "discard": Action(_discard),
    "replay-undelivered": Action(_replay_undelivered),
    "discard-undelivered": Action(_discard_undelivered),
    "give-up": Action(_give_up),
    "resolve-incident": Action(_resolve_incident, _NOTE),
    "resolve-review": Action(_close_review("resolved", "resolve"), _NOTE),
    "dismiss-review": Action(_close_review("dismissed", "dismiss"), _NOTE),
    "cancel-task": Action(_cancel_task),
    "revoke": Action(_revoke, (Field("reason", "Why"),)),
    "release": Action(_release),
    "reroute": Action(
        _reroute,
        (
            Field("agent", "Agent", is_required=True),
            Field("fallback", "Gateway that takes its mail", is_required=True),
        ),
    ),
    "purge": Action(_purge),
    "send": Action(_send),
}


async def plan_need(calls: ApiCalls, id: str) -> ActionCall:
    """The action of a need, as the gateway says it now."""
    found = await calls.get("/v1/needs", NeedList)
    need = next((each for each in found.needs if each.id == id), None)
    if need is None:
        raise InvalidRequest("this needs nobody any more")
    return _need_call(need)


def _need_call(need: Need) -> ActionCall:
    action = need.action
    if not action.path:
        raise InvalidRequest(f"this is decided at the command line: {action.command}")
    text = need.text if not need.detail else f"{need.text}: {need.detail}"
    return ActionCall(
        action.label, text, action.command, action.method, action.path, bytes(action.body)
    )
