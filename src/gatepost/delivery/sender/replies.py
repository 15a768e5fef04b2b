"""Replies: the answer to a turn as an event of its own, for the agent that sent the message."""

from gatepost.delivery.agents import Agents
from gatepost.delivery.decisions import Decisions, DeliveryEnded, ReplyArrived, TurnEnded
from gatepost.delivery.incidents import IncidentLog
from gatepost.delivery.local_node import LocalNode
from gatepost.delivery.outgoing import OutgoingEvent, TurnReply
from gatepost.delivery.sender.emitting import Emitter
from gatepost.delivery.sender.local_delivery import LocalDelivery
from gatepost.delivery.sender.receipts import ReceiptHandler
from gatepost.errors import MailboxFull, NoRoute
from gatepost.events import EventKind
from gatepost.journal.transaction import Tx
from gatepost.routing import Route


class ReplySender:
    def __init__(
        self,
        node: LocalNode,
        agents: Agents,
        emitter: Emitter,
        local: LocalDelivery,
        receipts: ReceiptHandler,
        incidents: IncidentLog,
    ) -> None:
        self._node = node
        self._agents = agents
        self._emitter = emitter
        self._local = local
        self._receipts = receipts
        self._incidents = incidents

    def send_reply(self, tx: Tx, turn: TurnEnded) -> Decisions | None:
        """Send the reply of a turn; None if there is none, or it cannot be sent.

        It goes to no other node than the sender's.
        """
        if turn.reply is None:
            return None
        info = turn.info
        out = OutgoingEvent(
            self._node.event_ids.next_id(),
            EventKind.REPLY,
            turn.to_agent,
            turn.from_agent,
            info.corr_id,
            turn.reply.payload,
            digest=turn.reply.digest,
            ref_event_id=info.event_id,
            traceparent=info.traceparent,
            # The replies to unordered messages do not wait for each other either.
            order="none" if info.order == "none" else None,
        )
        if info.source_node in (None, self._node.id):
            return self._reply_here(tx, out, info.event_id, turn.reply)
        try:
            return self._emitter.emit_event(tx, out, Route(info.source_node or "", "reply"))
        except NoRoute as error:
            self._incidents.raise_(tx, "reply_lost", out.event_id, error.message)
            return None

    def _reply_here(self, tx: Tx, out: OutgoingEvent, ref: str, reply: TurnReply) -> Decisions:
        """End the delivery here; the reply is mail only if the sender of the message wants it."""
        here = self._node.id
        decisions = self._receipts.apply_reply(tx, ReplyArrived(here, ref, reply))
        wanted = any(
            isinstance(each, DeliveryEnded) and each.replies_to == "mailbox" for each in decisions
        )
        if not wanted or not self._agents.is_registered(tx, out.to_agent):
            self._local.append_kept_reply(tx, out)
            return decisions
        route = Route(here, "local")
        if self._local.can_deliver(tx, out, route):
            try:
                self._local.deliver_event(tx, out, route)
            except MailboxFull:
                # Nothing was written yet: as an event for ourselves the reply is held.
                pass
            else:
                return decisions
        return (*decisions, *self._emitter.emit_event(tx, out, route))
