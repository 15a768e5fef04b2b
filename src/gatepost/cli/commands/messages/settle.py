"""`gatepost ack` and `gatepost nack`: settle leased messages."""

from typing import Annotated

from cyclopts import Parameter
from msgspec import Raw, Struct, field

from gatepost.cli import output
from gatepost.cli.gateway_api import mailbox_path
from gatepost.cli.options import DEFAULT_OPTIONS, AgentName, Flag, GatewayOptions
from gatepost.cli.payload import MAX_INLINE_BYTES, encode_payload_argument
from gatepost.cli.payload_upload import upload_payload
from gatepost.cli.problems import CommandProblem, ExitCode, usage_problem
from gatepost.wire import Settled

MsgIdsOption = Annotated[
    list[str] | None,
    Parameter(negative=(), help="Message id instead of a lease handle; repeatable."),
]


class CliSettleRequest(Struct, omit_defaults=True):
    receipts: list[str]
    msg_ids: list[str]
    replies: dict[str, Raw] = field(default_factory=dict)
    reply_refs: dict[str, str] = field(default_factory=dict)
    reason: str = ""
    retry: bool = True


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
    turns = _build_request(receipts, msg_id)
    if reply is not None:
        if msg_id:
            raise usage_problem("--reply needs a lease handle, not --msg-id")
        _attach_reply(turns, encode_payload_argument(reply, is_json=json_payload), options)
    return _settle_turns("ack", agent, turns, options)


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
    turns = _build_request(receipts, msg_id)
    turns.reason, turns.retry = reason, not no_retry
    return _settle_turns("nack", agent, turns, options)


def _build_request(receipts: tuple[str, ...], msg_ids: list[str] | None) -> CliSettleRequest:
    if not receipts and not msg_ids:
        raise usage_problem(
            "name at least one lease handle, as `gatepost inbox AGENT --take` prints it"
        )
    return CliSettleRequest(list(receipts), msg_ids or [])


def _attach_reply(turns: CliSettleRequest, reply: bytes, options: GatewayOptions) -> None:
    """Put a small reply inline; upload a large one as a blob."""
    if len(reply) * len(turns.receipts) <= MAX_INLINE_BYTES:
        turns.replies = dict.fromkeys(turns.receipts, Raw(reply))
        return
    with options.find_gateway() as gateway:
        digest = upload_payload(gateway, reply, options)
    turns.reply_refs = dict.fromkeys(turns.receipts, digest)


def _settle_turns(verb: str, agent: str, turns: CliSettleRequest, options: GatewayOptions) -> int:
    with options.find_gateway() as gateway:
        answer = gateway.post(f"{mailbox_path(agent)}/{verb}", turns, Settled)
    document = {"settled": answer.settled, "failures": answer.failures}
    output.print_result(options, document, lambda: _print_settled(verb, turns, answer))
    if answer.failures:
        raise CommandProblem(answer.failures[0].code, _failures_text(answer))
    return ExitCode.OK


def _print_settled(verb: str, turns: CliSettleRequest, answer: Settled) -> None:
    repeated = len(turns.receipts) + len(turns.msg_ids) - answer.settled - len(answer.failures)
    note = f", {repeated} already were" if repeated else ""
    output.print_line(f"{output.format_count(answer.settled, 'message')} {verb}ed{note}")


def _failures_text(answer: Settled) -> str:
    return "; ".join(f"{failure.subject}: {failure.message}" for failure in answer.failures)
