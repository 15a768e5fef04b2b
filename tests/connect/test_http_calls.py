"""Answers over HTTP as values or errors, whatever answers."""

import gzip
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer

import msgspec
import pytest

from gatepost.connect import http_calls
from gatepost.connect.gateway_endpoint import Target
from gatepost.connect.http_calls import AsyncHttpCalls, HttpCalls, NotGatewayAnswer, decode_answer
from gatepost.errors import MailboxFull, Unavailable, UnknownMessage
from gatepost.wire.operations import Count, Failure, Sent

FULL = msgspec.json.encode(Failure("mailbox_full", "bob has too much mail", retry_after=2.5))


@contextmanager
def answering(status: int, body: bytes, **headers: str) -> Iterator[str]:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_an_answer_is_decoded() -> None:
    assert decode_answer(200, b'{"op":"count","count":3}', Count).count == 3


def test_a_refusal_is_the_gateways_error_with_its_pause() -> None:
    with pytest.raises(MailboxFull, match="too much mail") as refused:
        decode_answer(429, FULL, Count)
    assert refused.value.retry_after == 2.5


@pytest.mark.parametrize("status", [200, 404, 502])
def test_other_content_is_not_from_a_gateway(status: int) -> None:
    with pytest.raises(NotGatewayAnswer) as answer:
        decode_answer(status, b"<html>", Count)
    assert answer.value.status == status


def test_blocking_calls_raise_the_same_errors_for_streams() -> None:
    missing = msgspec.json.encode(Failure("unknown_message", "no such message"))
    with answering(404, missing) as url, HttpCalls(url, "secret") as calls:
        with pytest.raises(UnknownMessage):
            calls.call("GET", "/v1/x", Count)
        with pytest.raises(UnknownMessage), calls.download("/v1/x"):
            pass


@pytest.mark.anyio
async def test_asynchronous_calls_name_the_status_of_a_foreign_answer() -> None:
    with answering(502, b"<html>") as url:
        calls = AsyncHttpCalls(lambda: Target(url, "secret"))
        with pytest.raises(Unavailable, match="status 502"):
            await calls.get("/v1/status", Count, 5.0)
        await calls.close()
    with pytest.raises(Unavailable, match="cannot be reached"):
        await AsyncHttpCalls(lambda: Target(url, "secret")).get("/v1/status", Count, 5.0)


BOMB = gzip.compress(bytes(64 << 20), 9)


@contextmanager
def memory_bound(most: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


def test_a_compressed_answer_is_never_unpacked() -> None:
    with (
        answering(200, BOMB, content_encoding="gzip") as url,
        HttpCalls(url) as calls,
        memory_bound(8 << 20),
    ):
        with pytest.raises(NotGatewayAnswer):
            calls.call("GET", "/v1/x", Count)
        with pytest.raises(NotGatewayAnswer), calls.download("/v1/x"):
            pass


@pytest.mark.anyio
async def test_a_compressed_answer_is_never_unpacked_asynchronously() -> None:
    with answering(200, BOMB, content_encoding="gzip") as url, memory_bound(8 << 20):
        calls = AsyncHttpCalls(lambda: Target(url, "secret"))
        with pytest.raises(Unavailable, match="status 200"):
            await calls.get("/v1/status", Count, 5.0)
        with pytest.raises(Unavailable, match="status 200"):
            async with calls.open_response("GET", "/v1/blobs/x", 5.0) as response:
                _ = [piece async for piece in calls.stream_body(response, 1024)]
        await calls.close()


def test_an_answer_is_read_up_to_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_calls, "_MAX_ANSWER_BYTES", 1 << 20)
    with (
        answering(200, bytes(16 << 20)) as url,
        HttpCalls(url) as calls,
        memory_bound(8 << 20),
        pytest.raises(NotGatewayAnswer),
    ):
        calls.call("GET", "/v1/x", Count)


def test_an_answer_that_trickles_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_calls, "_BODY_SECS", -1.0)
    with (
        answering(200, b'{"count":1}') as url,
        HttpCalls(url) as calls,
        pytest.raises(http_calls.httpx.ReadTimeout),
    ):
        calls.call("GET", "/v1/x", Count)


def test_a_message_that_ended_or_was_refused_waits_for_no_goal() -> None:
    accepted, ended = Sent("1", accepted_at=1), Sent("2", processed_at=2)
    refused = Sent("3", error=Failure("no_route", "nowhere"))
    assert [sent.has_reached("accepted") for sent in (accepted, ended, refused)] == [True] * 3
    assert [sent.has_reached("processed") for sent in (accepted, ended, refused)] == [
        *(False, True, True),
    ]
    assert not Sent("4").has_reached("accepted")
