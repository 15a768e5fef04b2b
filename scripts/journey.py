"""The journey of one message, step by step, for docs/architecture.md.

`al` sends a message through the gateway `ann` to `bo`, whose agent is behind the gateway `bob`, and
waits for the reply. Each step names the function itself, so a step cannot outlive its function.
tests/test_journey.py sends such a message between two real gateways and checks that every function
is entered in this order.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from gatepost.client._agents.agent_workers import AgentWorkers
from gatepost.client._agents.turn_settler import TurnSettler
from gatepost.client._client import Client
from gatepost.client._frame_socket import FrameSocket
from gatepost.client._mailbox_client import MailboxClient
from gatepost.client._operation_queue import OperationQueue
from gatepost.delivery.accept import take_batch
from gatepost.delivery.acceptance_check import AcceptanceCheck
from gatepost.delivery.close import apply_receipt, apply_reply
from gatepost.delivery.coordinator import DeliveryCoordinator
from gatepost.delivery.delivery_table import insert_delivery
from gatepost.delivery.engage import TurnReader, send_reply
from gatepost.delivery.event_acceptor import EventAcceptor
from gatepost.delivery.inbox.cursors import OutboxCursor
from gatepost.delivery.inbox.inbox_table import record_events
from gatepost.delivery.intake import Intake
from gatepost.delivery.outbox_writer import OutboxWriter
from gatepost.delivery.pairs import SenderPairs
from gatepost.delivery.payloads import encrypt_for
from gatepost.delivery.routes import RouteFinder
from gatepost.delivery.send import close_pair_numbers, emit_event, send_event
from gatepost.delivery.send_request import find_earlier_send
from gatepost.delivery.sent_messages import SentMessages
from gatepost.gateway.api.frame_channel import FrameChannel
from gatepost.gateway.api.mailbox_operations import MailboxOperations
from gatepost.gateway.api.operations import Operations
from gatepost.gateway.api.send_operations import SendOperations
from gatepost.journal.outbox import Outbox
from gatepost.journal.writer import Writer
from gatepost.links.connections.connection import PeerConnection
from gatepost.links.outbox_feed import OutboxFeed
from gatepost.links.outbox_link import OutboxLink
from gatepost.links.peer_links import PeerLink
from gatepost.links.service.connection_links import LinkedCore
from gatepost.mailbox.dispatcher import Dispatcher
from gatepost.mailbox.leases import take_mail
from gatepost.mailbox.settle import ack_mail
from gatepost.routing.decision import decide_route

# A process, and for a gateway's journal thread the word "writer" behind it.
CLIENT, AGENT = "client", "agent"
ANN, ANN_WRITER = "ann", "ann writer"
BOB, BOB_WRITER = "bob", "bob writer"


class JourneyStep(NamedTuple):
    """`call` is entered in `place`."""

    place: str
    call: Callable[..., Any]
    text: str

    @property
    def name(self) -> str:
        return function_name(self.call)


class JourneyLeg(NamedTuple):
    """Steps that follow one another. The first one follows the last one of the leg `after`.

    Legs that follow the same leg run side by side. `transaction` is the heading they share.
    """

    name: str
    after: str
    transaction: str
    text: str
    steps: tuple[JourneyStep, ...]


def function_name(call: Callable[..., Any]) -> str:
    """`delivery.coordinator.DeliveryCoordinator.send`."""
    call = call.func if isinstance(call, partial) else call
    return f"{call.__module__}.{call.__qualname__}".removeprefix("gatepost.")


_S = JourneyStep

JOURNEY = (
    JourneyLeg(
        "send",
        "",
        "1. send, at the sender's gateway",
        "The message becomes an event in ann's outbox, with a delivery that follows it.",
        (
            _S(CLIENT, Client.send, "chooses the event id, so that a repeated call is recognized"),
            _S(CLIENT, OperationQueue.send, "joins the calls of one tick into one operation"),
            _S(CLIENT, OperationQueue.flush_queue, "packs the operations of the tick into frames"),
            _S(CLIENT, FrameSocket.send, "writes one frame to the WebSocket"),
            _S(ANN, FrameChannel.receive_frame, "decodes the operations of the frame"),
            _S(ANN, Operations.admit, "applies the rate limit"),
            _S(ANN, SendOperations.plan_send, "checks the message, and plans one transaction"),
            _S(ANN, Writer.submit, "queues the transaction for the writer's thread"),
            _S(ANN_WRITER, Writer.run_group, "begins a commit group with all waiting operations"),
            _S(ANN_WRITER, DeliveryCoordinator.send, "is the send itself, in a savepoint"),
            _S(ANN_WRITER, find_earlier_send, "finds the same message, if it was sent before"),
            _S(ANN_WRITER, RouteFinder.find_route, "asks routing for the node, given the room"),
            _S(ANN_WRITER, decide_route, "decides: the owner, a fallback, or no route"),
            _S(ANN_WRITER, send_event, "is the fork: a mailbox here, or another gateway"),
            _S(ANN_WRITER, emit_event, "makes the event for the other gateway"),
            _S(ANN_WRITER, SenderPairs.next_number, "assigns the next pair number"),
            _S(ANN_WRITER, encrypt_for, "encrypts the payload for bob alone"),
            _S(ANN_WRITER, insert_delivery, "opens the delivery in state `emitted`"),
            _S(ANN_WRITER, OutboxWriter.append, "appends the event to the transaction"),
            _S(ANN_WRITER, Outbox.before_commit, "numbers, chains and signs the group's events"),
            _S(ANN_WRITER, Outbox.after_commit, "passes the group on, now that it is on disk"),
        ),
    ),
    JourneyLeg(
        "answer",
        "send",
        "1. send, at the sender's gateway",
        "The caller gets its answer. Without `wait` its call returns here.",
        (
            _S(
                ANN,
                FrameChannel.take_output,
                "answers: state `emitted`, node `bob`",
            ),
            _S(CLIENT, OperationQueue.handle_answer, "resolves the future of the call"),
            _S(CLIENT, Client._await_progress, "asks for the outcome, because `wait` was given"),
            _S(ANN, SendOperations.perform_await, "runs the `await` operation"),
            _S(ANN_WRITER, SentMessages.wait, "parks the caller until the status changes"),
        ),
    ),
    JourneyLeg(
        "accept",
        "send",
        "2. accept, at the owner's gateway",
        "Bob reads ann's outbox over the link, and has the message on disk.",
        (
            _S(ANN, OutboxFeed.publish_group, "takes bob's events of the group from memory"),
            _S(ANN, PeerLink.send, "encodes them as one `events` frame"),
            _S(ANN, PeerConnection.send_frame, "queues the frame for the room's WebSocket"),
            _S(BOB, PeerLink.receive, "decodes the frame"),
            _S(BOB, OutboxLink.receive_frame, "makes it a batch of ann's outbox"),
            _S(BOB, LinkedCore.commit, "queues the batch for the writer's thread"),
            _S(BOB_WRITER, DeliveryCoordinator.take_batch, "takes the whole batch or nothing"),
            _S(BOB_WRITER, take_batch, "checks with `prevSeqTo` that nothing is missing"),
            _S(BOB_WRITER, Intake.take_event, "drops a duplicate; keeps the order of the pair"),
            _S(BOB_WRITER, AcceptanceCheck.reason_against, "names a reason to refuse or hold it"),
            _S(BOB_WRITER, EventAcceptor.accept_event, "decrypts the payload"),
            _S(BOB_WRITER, Dispatcher.enqueue, "puts the mail into the agent's mailbox"),
            _S(BOB_WRITER, OutboxWriter.append_receipt, "appends the receipt `accepted`"),
            _S(BOB_WRITER, record_events, "notes the event in the inbox"),
            _S(BOB_WRITER, OutboxCursor.save, "moves the cursor in ann's outbox"),
            _S(BOB_WRITER, Dispatcher.before_commit, "serves the agent, which waits for mail"),
            _S(BOB_WRITER, take_mail, "leases the mail, still in the same transaction"),
            _S(BOB_WRITER, Outbox.before_commit, "numbers, chains and signs the receipt"),
            _S(BOB_WRITER, Dispatcher.after_commit, "passes the leased mail on"),
        ),
    ),
    JourneyLeg(
        "engage",
        "accept",
        "3. engage, at the owner's gateway",
        "The agent takes its turn. Its ack, the reply and `processed` are one transaction.",
        (
            _S(BOB, FrameChannel.take_output, "encodes the `deliver` frame of the mail"),
            _S(AGENT, AgentWorkers.accept_delivery, "queues the turn behind others of its sender"),
            _S(AGENT, AgentWorkers._take_turn, "runs one turn"),
            _S(AGENT, AgentWorkers._call_handler, "calls the handler; its result is the reply"),
            _S(AGENT, TurnSettler.settle_turn, "settles the turn: an ack, or a nack if it failed"),
            _S(AGENT, MailboxClient.ack, "encodes the reply"),
            _S(AGENT, OperationQueue.ack, "joins the acks of one tick into one operation"),
            _S(BOB, MailboxOperations.plan_ack, "plans one transaction"),
            _S(BOB_WRITER, DeliveryCoordinator.ack, "is the ack itself, in a savepoint"),
            _S(BOB_WRITER, Dispatcher.ack, "finds the lease by its handle"),
            _S(BOB_WRITER, ack_mail, "moves the mail to `acked`, which is final"),
            _S(BOB_WRITER, DeliveryCoordinator.end_turns, "goes through the mail that was closed"),
            _S(BOB_WRITER, TurnReader.read_turn, "returns the decision `TurnEnded`"),
            _S(BOB_WRITER, DeliveryCoordinator.apply_decisions, "applies it, and all that follows"),
            _S(BOB_WRITER, send_reply, "makes the reply an event for ann"),
            _S(BOB_WRITER, emit_event, "opens a delivery for the reply too"),
            _S(BOB_WRITER, OutboxWriter.append_receipt, "appends the receipt `processed`"),
            _S(BOB_WRITER, Outbox.before_commit, "numbers, chains and signs both events"),
            _S(BOB_WRITER, Outbox.after_commit, "passes the group on, now that it is on disk"),
        ),
    ),
    JourneyLeg(
        "first receipt",
        "accept",
        "4. close, at the sender's gateway",
        "The receipt `accepted` arrives while the agent works.",
        (
            _S(BOB, OutboxFeed.publish_group, "sends the receipt to ann"),
            _S(ANN, PeerLink.receive, "decodes the frame"),
            _S(ANN_WRITER, DeliveryCoordinator.take_batch, "takes the batch of bob's outbox"),
            _S(ANN_WRITER, take_batch, "returns the decision `ReceiptArrived`"),
            _S(ANN_WRITER, apply_receipt, "moves the delivery to `accepted`"),
            _S(ANN_WRITER, SentMessages.status_changed, "wakes callers that wait for `accepted`"),
        ),
    ),
    JourneyLeg(
        "close",
        "engage",
        "4. close, at the sender's gateway",
        "The reply and the receipt `processed` arrive in one batch.",
        (
            _S(BOB, OutboxFeed.publish_group, "sends both events to ann"),
            _S(ANN, PeerLink.receive, "decodes the frame"),
            _S(ANN_WRITER, DeliveryCoordinator.take_batch, "takes the batch of bob's outbox"),
            _S(ANN_WRITER, Intake.take_event, "takes the reply, which is tracked like a message"),
            _S(ANN_WRITER, EventAcceptor.accept_event, "decrypts it; decides `ReplyArrived`"),
            _S(ANN_WRITER, OutboxWriter.append_receipt, "appends both receipts for the reply"),
            _S(ANN_WRITER, DeliveryCoordinator.apply_decisions, "applies the decisions in order"),
            _S(ANN_WRITER, apply_reply, "moves the delivery to `replied`"),
            _S(ANN_WRITER, close_pair_numbers, "tells the next node, if the pair has moved"),
            _S(ANN_WRITER, SentMessages.status_changed, "wakes the caller once that is on disk"),
            _S(ANN_WRITER, apply_receipt, "finds the delivery closed already"),
            _S(ANN_WRITER, Outbox.before_commit, "numbers, chains and signs the two receipts"),
            _S(ANN_WRITER, SentMessages.take_woken, "passes the status to the parked caller"),
        ),
    ),
    JourneyLeg(
        "return",
        "close",
        "4. close, at the sender's gateway",
        "`Client.send` returns the outcome and the reply.",
        (
            _S(ANN, FrameChannel.take_output, "encodes the answer to the `await` operation"),
            _S(CLIENT, OperationQueue.handle_answer, "resolves the future of the call"),
        ),
    ),
    JourneyLeg(
        "reply",
        "close",
        "4. close, at the sender's gateway",
        "The delivery of the reply closes too, at bob.",
        (
            _S(ANN, OutboxFeed.publish_group, "sends bob the two receipts for the reply"),
            _S(BOB_WRITER, DeliveryCoordinator.take_batch, "takes the batch of ann's outbox"),
            _S(BOB_WRITER, apply_receipt, "moves the reply to `accepted`"),
            _S(BOB_WRITER, apply_receipt, "moves it to `processed`"),
        ),
    ),
)
