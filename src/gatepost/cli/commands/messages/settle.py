"""`gatepost ack` and `gatepost nack`: settle leased messages."""

from typing import Annotated

from cyclopts import Parameter
from msgspec import Raw

from gatepost.cli import output
from gatepost.cli.options import DEFAULT_OPTIONS, AgentName, Flag, GatewayOptions
from gatepost.cli.payload import MAX_INLINE_BYTES, encode_payload_argument
from gatepost.cli.payload_upload import upload_payload
from gatepost.cli.problems import CommandProblem, ExitCode, usage_problem
from gatepost.events import check_agent_id
from gatepost.wire.operations import Ack, Nack, Settled

MsgIdsOption = Annotated[
    list[str] | None,
    Parameter(negative=(), help="Message id instead of a lease handle; repeatable."),
]


def ack_turns(
    agent: AgentName,
    /,
    *receipts: str,
    msg_id: MsgIdsOption = None,
    reply: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    json_payload: Flag = False,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> int:
    """Ack leased messages: their turns ended well.

    The sender learns that its message was processed.

    For example:

      gatepost ack bob HANDLE
      gatepost ack bob HANDLE --reply "done"
      gatepost ack bob --msg-id ID

    Parameters
    ----------
    agent
        The agent whose turns end.
    receipts
        Lease handles in the order in which `gatepost inbox --take` printed them.
    reply
        Answer to the sender, up to 64 MiB; - reads it from standard input.
    json_payload
        The reply is JSON, not text.
    """
    _require_turns(receipts, msg_id)
    op = Ack(mailbox=check_agent_id(agent), receipts=list(receipts), msg_ids=msg_id or [])
    if reply is not None:
        if msg_id:
            raise usage_problem("--reply needs a lease handle, not --msg-id")
        _attach_reply(op, encode_payload_argument(reply, is_json=json_payload), options)
    return _settle_turns("ack", op, options)


def nack_turns(
    agent: AgentName,
    /,
    *receipts: str,
    msg_id: MsgIdsOption = None,
    reason: str = "",
    no_retry: Flag = False,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> int:
    """Nack leased messages: their turns failed.

    Each message is retried later, or becomes a dead letter.

    For example:

      gatepost nack bob HANDLE --reason "cannot reach the database"
      gatepost nack bob HANDLE --no-retry --reason "not a job for bob"

    Parameters
    ----------
    agent
        The agent whose turns failed.
    receipts
        Lease handles, as `gatepost inbox --take` printed them.
    reason
        The reason; it is kept with the dead letter.
    no_retry
        Make the message a dead letter at once.
    """
    _require_turns(receipts, msg_id)
    op = Nack(mailbox=check_agent_id(agent), receipts=list(receipts), msg_ids=msg_id or [])
    op.reason, op.retry = reason, not no_retry
    return _settle_turns("nack", op, options)


def _require_turns(receipts: tuple[str, ...], msg_ids: list[str] | None) -> None:
    if not receipts and not msg_ids:
        raise usage_problem(
            "name at least one lease handle, as `gatepost inbox AGENT --take` prints it"
        )


def _attach_reply(turns: Ack, reply: bytes, options: GatewayOptions) -> None:
    """Put a small reply inline; upload a large one as a blob."""
    if len(reply) * len(turns.receipts) <= MAX_INLINE_BYTES:
        turns.replies = dict.fromkeys(turns.receipts, Raw(reply))
        return
    with options.find_gateway() as gateway:
        digest = upload_payload(gateway, reply, options)
    turns.reply_refs = dict.fromkeys(turns.receipts, digest)


def _settle_turns(verb: str, turns: Ack | Nack, options: GatewayOptions) -> int:
    with options.find_gateway() as gateway:
        answer = gateway.perform(turns, Settled)
    if not answer.settled and len(answer.failures) == 1:
        raise CommandProblem(answer.failures[0].code, answer.failures[0].message)
    document = {"settled": answer.settled, "failures": answer.failures}
    output.print_result(options, document, lambda: _print_settled(verb, turns, answer))
    if answer.failures:
        raise CommandProblem(answer.failures[0].code, _failures_text(answer))
    return ExitCode.OK


def _print_settled(verb: str, turns: Ack | Nack, answer: Settled) -> None:
    repeated = len(turns.receipts) + len(turns.msg_ids) - answer.settled - len(answer.failures)
    note = f", {repeated} already were" if repeated else ""
    output.print_line(f"{output.format_count(answer.settled, 'message')} {verb}ed{note}")


def _failures_text(answer: Settled) -> str:
    return "; ".join(f"{failure.subject}: {failure.message}" for failure in answer.failures)
