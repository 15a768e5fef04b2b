"""OpenTelemetry spans of what happens to messages, where the operator asks for them.

`gatepost.send` is the call, until it is on disk; `gatepost.deliver` lasts from there until the
owner accepted; `gatepost.turn` from lease to the end of the turn. All of them are children of the
traceparent a message carries. The writer hands over what was committed and goes on; spans are made
in a thread of their own and exported by another. Whatever that cannot keep up with is dropped and
counted: telemetry never holds a message up.
"""

import contextlib
import logging
import queue
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import Raw, Struct, UnsetType

from gatepost import __version__, config
from gatepost.clock import Clock
from gatepost.delivery.coordinator import CountedReceipt
from gatepost.errors import ConfigError
from gatepost.events import TRACKED, Kind, Receipt
from gatepost.journal.outbox import Draft
from gatepost.wire import EventInfo, Message, NewSend

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

log = logging.getLogger(__name__)

_QUEUE = 10_000
# What may be open at a time; the oldest goes unreported when there is more.
_OPEN = 100_000
_STOP_SECS = 2.0
_NANOS = 1_000_000

_decode_receipt = msgspec.json.Decoder(Receipt).decode
_decode_info = msgspec.json.Decoder(EventInfo).decode


class Began(NamedTuple):
    at: int
    traceparent: str
    about: dict[str, str]


class Committed(Struct, frozen=True):
    """One commit group: what was appended, which receipts counted, what was leased."""

    drafts: list[Draft]
    receipts: list[CountedReceipt]
    leased: list[Message]
    now: int


class Sending(Struct, frozen=True):
    traceparent: str
    span: "Span"


class NotSent(Struct, frozen=True):
    traceparent: str
    code: str


Work = Committed | Sending | NotSent


def telemetry_of(settings: config.Telemetry, node: str, clock: Clock) -> "Telemetry | None":
    """What the settings ask for; ConfigError if it is not installed."""
    if not settings.enabled:
        return None
    try:
        return Telemetry(_exporter(settings), node, clock)
    except ImportError:
        raise ConfigError(
            "telemetry.enabled needs OpenTelemetry: pip install 'gatepost[telemetry]'"
        ) from None


def _exporter(settings: config.Telemetry) -> "SpanExporter":
    if settings.exporter == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=settings.endpoint or None)


class Telemetry:
    """`sending` and `not_sent` belong to whoever sends, the rest to the writer's thread."""

    def __init__(self, exporter: "SpanExporter", node: str, clock: Clock) -> None:
        from opentelemetry.context import Context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = _provider(exporter, node)
        self._tracer = self._provider.get_tracer("gatepost", __version__)
        self._propagator = TraceContextTextMapPropagator()
        # Not the current context: whatever else is traced in this process is no parent of ours.
        self._nothing = Context()
        self._node = node
        self._clock = clock
        self._queue: queue.Queue[Work | None] = queue.Queue(_QUEUE)
        self._leased: list[Message] = []
        self._sends: dict[str, Span] = {}
        self._deliveries: dict[str, Began] = {}
        self._turns: dict[str, Began] = {}
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._thread.start()

    # -- what others say

    def sending(self, messages: list[NewSend]) -> None:
        """Begin a span for each, and let the message carry it."""
        for new in messages:
            given = None if isinstance(new.traceparent, UnsetType) else new.traceparent
            span = self._start("gatepost.send", given, self._clock.now())
            span.set_attributes({"gatepost.from": new.from_agent, "gatepost.to": new.to_agent})
            carried = self._carried(span)
            if carried is not None:
                new.traceparent = carried
                self._put(Sending(carried, span))

    def not_sent(self, new: NewSend, code: str) -> None:
        if not isinstance(new.traceparent, UnsetType):
            self._put(NotSent(new.traceparent, code))

    def leased(self, messages: list[Message]) -> None:
        self._leased += messages

    def committed(self, drafts: list[Draft], receipts: list[CountedReceipt], now: int) -> None:
        leased, self._leased = self._leased, []
        if drafts or receipts or leased:
            self._put(Committed(drafts, receipts, leased, now))

    def rolled_back(self) -> None:
        self._leased = []

    def stop(self) -> None:
        """Export what there is, if that does not take long."""
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=_STOP_SECS)
        self._thread.join(_STOP_SECS)
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        ending.join(_STOP_SECS)

    def _put(self, work: Work) -> None:
        try:
            self._queue.put_nowait(work)
        except queue.Full:
            self.dropped += 1

    # -- the thread

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                self._handle(work)
            except Exception:
                log.exception("a span could not be made")

    def _handle(self, work: Work) -> None:
        match work:
            case Sending():
                _keep(self._sends, work.traceparent, work.span)
            case NotSent():
                self._end_send(work.traceparent, self._clock.now(), work.code)
            case Committed():
                self._group(work)

    def _group(self, group: Committed) -> None:
        for message in group.leased:
            self._lease(message, group.now)
        for draft in group.drafts:
            self._draft(draft, group.now)
        for _, _, _, event_id in group.receipts:
            began = self._deliveries.pop(event_id, None)
            if began is not None:
                self._report("gatepost.deliver", began, group.now)

    def _lease(self, message: Message, now: int) -> None:
        if not isinstance(message.event, Raw):
            return
        info = _decode_info(message.event)
        if info.traceparent is not None:
            about = {"gatepost.event": info.event_id, "gatepost.agent": message.to}
            _keep(self._turns, info.event_id, Began(now, info.traceparent, about))

    def _draft(self, draft: Draft, now: int) -> None:
        if draft.kind == Kind.ACK and draft.ref_event_id in self._turns:
            receipt = _decode_receipt(draft.payload if isinstance(draft.payload, Raw) else b"{}")
            if receipt.status == "processed":
                began = self._turns.pop(draft.ref_event_id)
                self._report("gatepost.turn", began, now, receipt.outcome or "ok")
        elif draft.kind in TRACKED and draft.attempt == 1:
            self._emitted(draft, now)

    def _emitted(self, draft: Draft, now: int) -> None:
        traceparent = draft.trace and draft.trace.traceparent
        if not traceparent:
            return
        self._end_send(traceparent, now)
        if draft.to_node_id not in (None, self._node):
            about = {
                "gatepost.event": draft.event_id,
                "gatepost.kind": draft.kind,
                "gatepost.node": draft.to_node_id or "",
            }
            _keep(self._deliveries, draft.event_id, Began(now, traceparent, about))

    def _end_send(self, traceparent: str, now: int, code: str = "") -> None:
        span = self._sends.pop(traceparent, None)
        if span is not None:
            _end(span, now, code)

    def _report(self, name: str, began: Began, now: int, outcome: str = "ok") -> None:
        span = self._start(name, began.traceparent, began.at)
        span.set_attributes(began.about)
        _end(span, now, "" if outcome == "ok" else outcome)

    def _start(self, name: str, traceparent: str | None, at: int) -> "Span":
        carrier = {} if traceparent is None else {"traceparent": traceparent}
        context = self._propagator.extract(carrier, context=self._nothing)
        return self._tracer.start_span(name, context=context, start_time=at * _NANOS)

    def _carried(self, span: "Span") -> str | None:
        from opentelemetry.trace import set_span_in_context

        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, context=set_span_in_context(span, self._nothing))
        return carrier.get("traceparent")


def _end(span: "Span", now: int, problem: str) -> None:
    if problem:
        from opentelemetry.trace import Status, StatusCode

        span.set_status(Status(StatusCode.ERROR, problem))
    span.end(end_time=now * _NANOS)


def _keep(open: dict[str, Any], key: str, value: object) -> None:
    if len(open) >= _OPEN:
        del open[next(iter(open))]
    open[key] = value


def _provider(exporter: "SpanExporter", node: str) -> "TracerProvider":
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create({"service.name": "gatepost", "service.instance.id": node})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider
