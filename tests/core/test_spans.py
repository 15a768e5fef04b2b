"""Spans, as an exporter in memory and a real receiver of OTLP get them."""

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET, Raw
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gatepost.config import TelemetrySettings as Settings
from gatepost.core.commit_observer import CommitObserver
from gatepost.core.spans import SpanRecorder, create_span_recorder
from gatepost.delivery.coordinator import CountedReceipt
from gatepost.events import decode_event
from gatepost.gateway.api.operations import Operations
from gatepost.testing import GatewayProcess, ManualClock
from gatepost.wire.operations import Ack, Dequeue, LeasedMessage, NewSend, Register, Send
from tests.delivery.mesh import Mesh
from tests.gateway.tools import client, opened
from tests.live_mesh.tools import Gateway
from tests.waiting import wait_until

GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@contextlib.asynccontextmanager
async def traced(
    state: Path, clock: ManualClock
) -> AsyncIterator[tuple[Operations, InMemorySpanExporter]]:
    """A gateway whose spans stay in memory. Read them when it has ended."""
    exporter = InMemorySpanExporter()
    async with opened(state, clock) as operations:
        core = operations.core
        core.telemetry = SpanRecorder(exporter, core.node.id, clock)
        core.observer._telemetry = core.telemetry
        core.dispatcher.on_leased = core.telemetry.add_leased
        await operations.perform(Register(agent="bob"))
        yield operations, exporter


async def turn(operations: Operations, clock: ManualClock, **fields: object) -> LeasedMessage:
    """Send one, and 20 ms later take it, and 50 ms later end its turn."""
    new = NewSend("al", "bob", Raw(b"1"), **fields)  # type: ignore[arg-type]
    await operations.perform(Send(messages=[new]))
    clock.advance(20)
    (message,) = (await operations.perform(Dequeue(mailbox="bob"))).messages
    clock.advance(50)
    receipt = message.receipt
    ack = Ack(mailbox="bob", receipts=[receipt], replies={receipt: Raw(b'"thanks"')})
    await operations.perform(ack)
    assert isinstance(message, LeasedMessage)
    return message


def by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


def millis(span: ReadableSpan) -> float:
    return ((span.end_time or 0) - (span.start_time or 0)) / 1e6


def test_a_message_without_a_traceparent_gets_one_and_its_turn_is_a_child(
    state: Path, clock: ManualClock
) -> None:
    async def scenario() -> tuple[InMemorySpanExporter, LeasedMessage, list[str | None]]:
        async with traced(state, clock) as (operations, exporter):
            message = await turn(operations, clock)
            rows = await operations.core.read(
                lambda tx: tx.fetch_all("SELECT body FROM outbox WHERE kind <> 'ack' ORDER BY seq")
            )
            traces = [decode_event(row[0]).trace for row in rows]
            carried = [trace.traceparent if trace else None for trace in traces]
        return exporter, message, carried

    exporter, message, carried = asyncio.run(scenario())
    spans = by_name(exporter)
    send, turned = spans["gatepost.send"], spans["gatepost.turn"]
    assert send.context and turned.parent and send.parent is None
    assert turned.parent.span_id == send.context.span_id
    assert turned.context and turned.context.trace_id == send.context.trace_id
    assert millis(turned) == 50
    assert turned.attributes and turned.attributes["gatepost.agent"] == "bob"
    ids = f"{send.context.trace_id:032x}-{send.context.span_id:016x}"
    own = f"00-{ids}-{send.context.trace_flags:02x}"
    assert carried == [own, own], "the message carries it, and so does the reply"
    assert not isinstance(message.event, type(UNSET)) and own.encode() in bytes(message.event)


def test_a_given_traceparent_is_the_parent(state: Path, clock: ManualClock) -> None:
    async def scenario() -> InMemorySpanExporter:
        async with traced(state, clock) as (operations, exporter):
            await turn(operations, clock, traceparent=GIVEN)
        return exporter

    spans = by_name(asyncio.run(scenario()))
    send = spans["gatepost.send"]
    assert send.parent and send.context
    assert f"{send.parent.span_id:016x}" == "b7ad6b7169203331"
    assert {f"{s.context.trace_id:032x}" for s in spans.values() if s.context} == {
        "0af7651916cd43dd8448eb211c80319c"
    }


def test_a_message_that_is_not_sent_is_a_span_with_an_error(
    state: Path, clock: ManualClock
) -> None:
    async def scenario() -> InMemorySpanExporter:
        async with traced(state, clock) as (operations, exporter):
            new = NewSend("al", "nobody", Raw(b"1"))
            reply = await operations.perform(Send(messages=[new]))
            assert reply.results[0].error is not None
        return exporter

    (span,) = asyncio.run(scenario()).get_finished_spans()
    assert (span.name, span.status.is_ok) == ("gatepost.send", False)
    assert span.status.description


def test_a_delivery_to_another_gateway_lasts_until_it_is_accepted() -> None:
    mesh = Mesh("a", "b")
    a, b = mesh["a"], mesh["b"]
    exporters = {}
    ends = []
    for gate in (a, b):
        exporters[gate.id] = InMemorySpanExporter()
        telemetry = SpanRecorder(exporters[gate.id], gate.id, mesh.clock)
        gate.writer._participants += (CommitObserver(gate.core, telemetry),)
        ends.append(telemetry)
    mesh.link("a", "b")
    mesh.flow()
    a.send(b, traceparent=GIVEN)
    mesh.clock.advance(120)
    mesh.flow()
    mesh.clock.advance(1_000)
    b.settle()
    mesh.flow()
    for telemetry in ends:
        telemetry.stop()
    delivered, turned = by_name(exporters["a"]), by_name(exporters["b"])
    assert (list(delivered), list(turned)) == (["gatepost.deliver"], ["gatepost.turn"])
    span = delivered["gatepost.deliver"]
    assert millis(span) == 120
    assert span.attributes and span.attributes["gatepost.node"] == "b"
    for each in (span, turned["gatepost.turn"]):
        assert each.parent and f"{each.parent.span_id:016x}" == "b7ad6b7169203331"


def test_what_cannot_be_kept_up_with_is_dropped_and_counted(clock: ManualClock) -> None:
    telemetry = SpanRecorder(InMemorySpanExporter(), "ann", clock)
    telemetry.stop()
    for _ in range(10_100):
        telemetry.submit_group([], [CountedReceipt("message", "accepted", 1, "x")], 0)
    assert telemetry.dropped >= 100


def test_a_group_that_fails_leaves_no_spans(state: Path, clock: ManualClock) -> None:
    exporter = InMemorySpanExporter()
    telemetry = SpanRecorder(exporter, "ann", clock)

    async def scenario() -> None:
        async with opened(state, clock) as operations:
            observer = CommitObserver(operations.core.delivery, telemetry)
            telemetry.add_leased([])
            observer.rolled_back()
            assert observer.after_commit() == []

    asyncio.run(scenario())
    telemetry.stop()
    assert exporter.get_finished_spans() == ()


# -- the real thing


class Collector:
    """Takes what an OTLP exporter posts."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, bytes]] = []
        taken = self.requests

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                taken.append((self.path, self.headers["content-type"], body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Quietly."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/traces"

    def spans(self) -> dict[str, list[str]]:
        """The nodes each span came from, by its name."""
        found: dict[str, list[str]] = {}
        for name, node, _ in self._all():
            found.setdefault(name, []).append(node)
        return found

    def names_in(self, trace: str) -> set[str]:
        return {name for name, _, id in self._all() if id == trace}

    def _all(self) -> Iterator[tuple[str, str, str]]:
        for path, kind, body in list(self.requests):
            assert (path, kind) == ("/v1/traces", "application/x-protobuf")
            for batch in ExportTraceServiceRequest.FromString(body).resource_spans:
                resource = {a.key: a.value.string_value for a in batch.resource.attributes}
                for scope in batch.scope_spans:
                    for span in scope.spans:
                        yield span.name, resource["service.instance.id"], span.trace_id.hex()


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    thread = threading.Thread(target=found.server.serve_forever, daemon=True)
    thread.start()
    yield found
    found.server.shutdown()
    found.server.server_close()
    thread.join(5)


def test_a_gateway_exports_to_a_collector(
    collector: Collector, start: Callable[..., GatewayProcess]
) -> None:
    gateway = start(telemetry__enabled=True, telemetry__endpoint=collector.url, node__id="ann")
    with client(gateway) as http:
        http.put("/v1/agents/bob")
        http.post("/v1/messages", json={"from_agent": "al", "to_agent": "bob", "payload": 1})
        (mail,) = http.post("/v1/mailboxes/bob/dequeue", json={}).json()["messages"]
        assert mail["event"]["traceparent"].startswith("00-")
        http.post("/v1/mailboxes/bob/ack", json={"receipts": [mail["receipt"]]})
    gateway.stop()
    wait_until(lambda: "gatepost.turn" in collector.spans())
    assert collector.spans() == {"gatepost.send": ["ann"], "gatepost.turn": ["ann"]}


def test_two_gateways_tell_one_trace(collector: Collector, tmp_path: Path) -> None:
    told = {"telemetry__enabled": True, "telemetry__endpoint": collector.url}
    with Gateway(tmp_path, "ann", **told) as ann, Gateway(tmp_path, "bob", **told) as bob:
        bob.join(ann)
        bob.call("PUT", "/agents/worker")
        body = {"from_agent": "al", "to_agent": "worker", "payload": 1}

        def sent() -> bool:
            with client(ann) as http:
                return http.post("/v1/messages", json=body).is_success

        wait_until(sent)
        taken: list[Any] = []

        def take() -> list[Any]:
            taken.extend(bob.call("POST", "/mailboxes/worker/dequeue", {})["messages"])
            return taken

        wait_until(take)
        (mail,) = taken
        bob.call("POST", "/mailboxes/worker/ack", {"receipts": [mail["receipt"]]})
        for gateway in (ann, bob):
            assert gateway.stop() == 0
    wait_until(lambda: {"gatepost.deliver", "gatepost.turn"} <= collector.spans().keys())
    spans = collector.spans()
    assert (spans["gatepost.deliver"], spans["gatepost.turn"]) == (["ann"], ["bob"])
    trace = mail["event"]["traceparent"].split("-")[1]
    assert {"gatepost.send", "gatepost.deliver", "gatepost.turn"} == collector.names_in(trace)


def test_a_collector_that_is_not_there_holds_nothing_up(
    start: Callable[..., GatewayProcess],
) -> None:
    gateway = start(telemetry__enabled=True, telemetry__endpoint="http://127.0.0.1:9/v1/traces")
    with client(gateway) as http:
        http.put("/v1/agents/bob")
        for _ in range(20):
            sent = http.post(
                "/v1/messages",
                json={"from_agent": "al", "to_agent": "bob", "payload": 1},
                timeout=5,
            )
            assert sent.status_code == 200
    assert gateway.stop() == 0


def test_nothing_of_it_is_loaded_unless_it_is_asked_for(clock: ManualClock) -> None:
    assert create_span_recorder(Settings(), "ann", clock) is None
    code = "import sys, gatepost.gateway.serve; print('opentelemetry' in sys.modules)"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.check_output([sys.executable, "-c", code], env=env, text=True) == "False\n"
