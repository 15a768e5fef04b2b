"""Every operation has its scope, and everyone only what was granted."""

from typing import Any, get_args

import msgspec
import pytest

from gatepost.access import scopes
from gatepost.access.scopes import (
    ENDPOINT_AUTHORITY,
    OPERATION_SCOPES,
    AgentEndpoint,
    Scope,
    authorize_op,
    scopes_cover,
)
from gatepost.wire.frame_types import Op
from gatepost.wire.operations import Ack, Await, Operation
from gatepost.wire.tasks import ReportAction, TaskAwait, TaskCancel, TaskReport, TaskReports
from tests.access.harness import refused

TYPES: tuple[type[Op], ...] = get_args(Operation)
TAGS = {kind: str(msgspec.inspect.type_info(kind).tag) for kind in TYPES}  # type: ignore[attr-defined]

TASK = "01a1e43d-9d8d-718e-9067-c0d71feb1aaf"
# One of each, as the agent `codex` would send it.
EXAMPLES: dict[str, dict[str, Any]] = {
    "enqueue": {"messages": [{"from": "codex", "to": "b", "payload": 1, "msg_id": "m"}]},
    "send": {"messages": [{"from_agent": "codex", "to_agent": "b", "payload": 1}]},
    "await": {"event_id": "e"},
    "register": {"agent": "codex"},
    "extend": {"mailbox": "codex", "receipts": []},
    "task_create": {"tasks": [{"from_agent": "codex", "to_agents": ["b"]}]},
    "task_report": {"reports": [{"task_id": TASK, "agent": "codex", "action": "update"}]},
    "task_await": {"task_id": TASK},
    "task_cancel": {"task_id": TASK},
}
# Only the journal knows whose event or task these name.
OF_SOMEBODY = (Await, TaskAwait, TaskCancel)


class Session(msgspec.Struct):
    agent_id: str
    scopes: tuple[str, ...]


def example(kind: type[Op], agent: str = "codex") -> Op:
    tag = TAGS[kind]
    body = EXAMPLES.get(tag, {"mailbox": "codex"})
    encoded = msgspec.json.encode({"op": tag} | body).replace(b'"codex"', f'"{agent}"'.encode())
    return msgspec.json.decode(encoded, type=kind)


@pytest.mark.parametrize("kind", TYPES)
def test_every_operation_of_the_wire_has_a_scope_and_needs_it(kind: type[Op]) -> None:
    scope = OPERATION_SCOPES[TAGS[kind]]
    authorize_op(Session("codex", (scope, Scope.TASK_UPDATE)), example(kind))
    others = tuple(s for s in Scope if not scopes_cover((s,), scope))
    with refused("insufficient_scope"):
        authorize_op(Session("codex", others), example(kind))


@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind not in OF_SOMEBODY])
def test_a_session_acts_only_as_its_own_agent_whatever_its_scopes(kind: type[Op]) -> None:
    almighty = Session("codex", tuple(Scope))
    authorize_op(almighty, example(kind))
    with refused("forbidden"):
        authorize_op(almighty, example(kind, agent="claude"))


def test_one_message_in_anothers_name_spoils_the_batch() -> None:
    mixed = msgspec.convert(
        {
            "op": "send",
            "messages": [
                {"from_agent": "codex", "to_agent": "b"},
                {"from_agent": "claude", "to_agent": "b"},
            ],
        },
        Operation,
    )
    with refused("forbidden"):
        authorize_op(Session("codex", tuple(Scope)), mixed)


@pytest.mark.parametrize(
    "reply",
    [
        Ack(mailbox="codex", receipts=["r"], replies={"r": msgspec.Raw(b"1")}),
        Ack(mailbox="codex", receipts=["r"], reply_refs={"r": "sha256:" + "0" * 64}),
    ],
)
def test_an_ack_that_replies_also_sends(reply: Ack) -> None:
    with refused("insufficient_scope"):
        authorize_op(Session("codex", (Scope.MESSAGE_READ,)), reply)
    authorize_op(Session("codex", (Scope.MESSAGE_READ, Scope.MESSAGE_SEND)), reply)


def test_the_table_names_the_operations_of_the_wire_and_status_and_no_others() -> None:
    assert set(OPERATION_SCOPES) == set(TAGS.values()) | {"status"}


@pytest.mark.parametrize(
    ("action", "scope"),
    [
        ("accept", Scope.TASK_CLAIM),
        ("update", Scope.TASK_UPDATE),
        ("complete", Scope.TASK_COMPLETE),
        ("fail", Scope.TASK_COMPLETE),
    ],
)
def test_a_report_needs_the_scope_of_its_action(action: ReportAction, scope: Scope) -> None:
    op = TaskReports(reports=[TaskReport(TASK, "codex", action)])
    authorize_op(Session("codex", (Scope.TASK_READ, scope)), op)
    with refused("insufficient_scope"):
        authorize_op(Session("codex", tuple(set(Scope) - {scope})), op)
    with refused("forbidden"):
        authorize_op(Session("other", (Scope.TASK_READ, scope)), op)


def test_an_operation_nobody_listed_is_denied_to_all() -> None:
    with refused("forbidden"):
        scopes.authorize_operation_name(Session("codex", tuple(Scope)), "shutdown")


def test_every_agent_endpoint_says_what_it_needs() -> None:
    assert set(ENDPOINT_AUTHORITY) == set(AgentEndpoint)


def test_only_the_admin_wildcard_stands_for_others() -> None:
    assert scopes_cover(["ansible.admin.*"], "ansible.admin.access")
    assert scopes_cover(["ansible.admin.*"], "ansible.admin.*")
    assert not scopes_cover(["ansible.admin.access"], "ansible.admin.*")
    assert not scopes_cover(["ansible.admin.*"], "ansible.message.read")
    assert not scopes_cover(["ansible.*", "ansible.message.*"], "ansible.message.read")
    assert not scopes_cover([], "ansible.status.read")


def test_only_scopes_that_exist_can_be_granted() -> None:
    with refused("invalid_request"):
        scopes.check_grantable(["ansible.message.*"], None)
