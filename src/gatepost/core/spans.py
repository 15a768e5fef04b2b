"""OpenTelemetry spans of messages, if the settings enable them.

`gatepost.send` is the call, until it is on disk; `gatepost.deliver` lasts from there until the
owner accepted; `gatepost.turn` from lease to the end of the turn. All of them are children of the
traceparent a message carries. The writer only queues each committed group. One thread makes the
spans, another exports them. Groups that exceed the queue are dropped and counted: telemetry never
delays a message.
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
from gatepost.events import TRACKED_KINDS, Envelope, EventKind, Receipt
from gatepost.wire.operations import EventInfo, LeasedMessage, NewSend

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

log = logging.getLogger(__name__)

_MAX_QUEUED = 10_000
# Limit of open spans of each kind; beyond it, the oldest is not reported.
_MAX_OPEN_SPANS = 100_000
_STOP_SECS = 2.0
_NANOS_PER_MS = 1_000_000

_decode_receipt = msgspec.json.Decoder(Receipt).decode
_decode_info = msgspec.json.Decoder(EventInfo).decode


class OpenSpan(NamedTuple):
    at: int
    traceparent: str
    attributes: dict[str, str]


class CommittedGroup(Struct, frozen=True):
    """One commit group: events appended, receipts that counted, and mail leased."""

    drafts: list[Envelope]
    receipts: list[CountedReceipt]
    leased: list[LeasedMessage]
    now: int


class StartedSend(Struct, frozen=True):
    traceparent: str
    span: "Span"


class FailedSend(Struct, frozen=True):
    traceparent: str
    code: str


SpanWork = CommittedGroup | StartedSend | FailedSend


def create_span_recorder(
    settings: config.TelemetrySettings, node: str, clock: Clock
) -> "SpanRecorder | None":
    """Create the recorder if enabled; raise ConfigError if OpenTelemetry is not installed."""
    if not settings.enabled:
        return None
    try:
        return SpanRecorder(_create_exporter(settings), node, clock)
    except ImportError:
        raise ConfigError(
            "telemetry.enabled needs OpenTelemetry: pip install 'gatepost[telemetry]'"
        ) from None


def _create_exporter(settings: config.TelemetrySettings) -> "SpanExporter":
    if settings.exporter == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=settings.endpoint or None)


class SpanRecorder:
    """Makes and exports spans.

    `begin_sends` and `fail_send` may be called in any thread, the others in the writer's thread.
    """

    def __init__(self, exporter: "SpanExporter", node: str, clock: Clock) -> None:
        from opentelemetry.context import Context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = _create_provider(exporter, node)
        self._tracer = self._provider.get_tracer("gatepost", __version__)
        self._propagator = TraceContextTextMapPropagator()
        # An empty context, because other spans of this process are not parents of ours.
        self._empty_context = Context()
        self._node = node
        self._clock = clock
        self._queue: queue.Queue[SpanWork | None] = queue.Queue(_MAX_QUEUED)
        self._leased: list[LeasedMessage] = []
        self._open_sends: dict[str, Span] = {}
        self._open_deliveries: dict[str, OpenSpan] = {}
        self._open_turns: dict[str, OpenSpan] = {}
        self.dropped = 0
        self._thread = threading.Thread(target=self._run_thread, name="telemetry", daemon=True)
        self._thread.start()

    # -- called by senders and by the writer

    def begin_sends(self, messages: list[NewSend]) -> None:
        """Begin a span for each message, and put its traceparent into the message."""
        for new in messages:
            given = None if isinstance(new.traceparent, UnsetType) else new.traceparent
            span = self._start_span("gatepost.send", given, self._clock.now())
            span.set_attributes({"gatepost.from": new.from_agent, "gatepost.to": new.to_agent})
            carried = self._span_traceparent(span)
            if carried is not None:
                new.traceparent = carried
                self._enqueue_work(StartedSend(carried, span))

    def fail_send(self, new: NewSend, code: str) -> None:
        if not isinstance(new.traceparent, UnsetType):
            self._enqueue_work(FailedSend(new.traceparent, code))

    def add_leased(self, messages: list[LeasedMessage]) -> None:
        self._leased += messages

    def submit_group(
        self, drafts: list[Envelope], receipts: list[CountedReceipt], now: int
    ) -> None:
        leased, self._leased = self._leased, []
        if drafts or receipts or leased:
            self._enqueue_work(CommittedGroup(drafts, receipts, leased, now))

    def discard_leased(self) -> None:
        self._leased = []

    def stop(self) -> None:
        """Export queued spans, within a bounded time."""
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=_STOP_SECS)
        self._thread.join(_STOP_SECS)
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        ending.join(_STOP_SECS)

    def _enqueue_work(self, work: SpanWork) -> None:
        try:
            self._queue.put_nowait(work)
        except queue.Full:
            self.dropped += 1

    # -- the span thread

    def _run_thread(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                self._handle_work(work)
            except Exception:
                log.exception("a span could not be made")

    def _handle_work(self, work: SpanWork) -> None:
        match work:
            case StartedSend():
                _keep_bounded(self._open_sends, work.traceparent, work.span)
            case FailedSend():
                self._end_send(work.traceparent, self._clock.now(), work.code)
            case CommittedGroup():
                self._handle_group(work)

    def _handle_group(self, group: CommittedGroup) -> None:
        for message in group.leased:
            self._begin_turn(message, group.now)
        for draft in group.drafts:
            self._handle_draft(draft, group.now)
        for _, _, _, event_id in group.receipts:
            began = self._open_deliveries.pop(event_id, None)
            if began is not None:
                self._report_span("gatepost.deliver", began, group.now)

    def _begin_turn(self, message: LeasedMessage, now: int) -> None:
        if not isinstance(message.event, Raw):
            return
        info = _decode_info(message.event)
        if info.traceparent is not None:
            about = {"gatepost.event": info.event_id, "gatepost.agent": message.to}
            _keep_bounded(self._open_turns, info.event_id, OpenSpan(now, info.traceparent, about))

    def _handle_draft(self, draft: Envelope, now: int) -> None:
        if draft.kind == EventKind.ACK and draft.ref_event_id in self._open_turns:
            receipt = _decode_receipt(draft.payload if isinstance(draft.payload, Raw) else b"{}")
            if receipt.status == "processed":
                began = self._open_turns.pop(draft.ref_event_id)
                self._report_span("gatepost.turn", began, now, receipt.outcome or "ok")
        elif draft.kind in TRACKED_KINDS and draft.attempt == 1:
            self._begin_delivery(draft, now)

    def _begin_delivery(self, draft: Envelope, now: int) -> None:
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
            _keep_bounded(self._open_deliveries, draft.event_id, OpenSpan(now, traceparent, about))

    def _end_send(self, traceparent: str, now: int, code: str = "") -> None:
        span = self._open_sends.pop(traceparent, None)
        if span is not None:
            _end_span(span, now, code)

    def _report_span(self, name: str, began: OpenSpan, now: int, outcome: str = "ok") -> None:
        span = self._start_span(name, began.traceparent, began.at)
        span.set_attributes(began.attributes)
        _end_span(span, now, "" if outcome == "ok" else outcome)

    def _start_span(self, name: str, traceparent: str | None, at: int) -> "Span":
        carrier = {} if traceparent is None else {"traceparent": traceparent}
        context = self._propagator.extract(carrier, context=self._empty_context)
        return self._tracer.start_span(name, context=context, start_time=at * _NANOS_PER_MS)

    def _span_traceparent(self, span: "Span") -> str | None:
        from opentelemetry.trace import set_span_in_context

        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, context=set_span_in_context(span, self._empty_context))
        return carrier.get("traceparent")


def _end_span(span: "Span", now: int, problem: str) -> None:
    if problem:
        from opentelemetry.trace import Status, StatusCode

        span.set_status(Status(StatusCode.ERROR, problem))
    span.end(end_time=now * _NANOS_PER_MS)


def _keep_bounded(open: dict[str, Any], key: str, value: object) -> None:
    if len(open) >= _MAX_OPEN_SPANS:
        del open[next(iter(open))]
    open[key] = value


def _create_provider(exporter: "SpanExporter", node: str) -> "TracerProvider":
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create({"service.name": "gatepost", "service.instance.id": node})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider
