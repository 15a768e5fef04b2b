"""Stand-ins on loopback for the model APIs of Anthropic and OpenAI: they answer, and remember.

Real clients run whole turns against them, without a network and without a model.
"""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class ModelStandIn:
    """Answers every turn with a short text. `requests` has what the clients asked."""

    def __init__(self, answer: Callable[[int, Any], bytes], path: str) -> None:
        self.requests: list[Any] = []
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_HEAD(self) -> None:
                self._send(b"", "application/json")

            def do_GET(self) -> None:
                self._send(b'{"data": [], "models": []}', "application/json")

            def do_POST(self) -> None:
                size = int(self.headers.get("content-length") or 0)
                raw = self.rfile.read(size)
                if "count_tokens" in self.path:
                    self._send(b'{"input_tokens": 10}', "application/json")
                    return
                try:
                    body = json.loads(raw)
                except ValueError:
                    body = {}
                if path in self.path:
                    stand_in.requests.append(body)
                kind = "text/event-stream" if body.get("stream") else "application/json"
                self._send(answer(len(stand_in.requests), body), kind)

            def _send(self, body: bytes, kind: str) -> None:
                self.send_response(200)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def find(self, words: str, start: int = 0) -> int | None:
        """The number of the first request from `start` on that holds these words."""
        for number, body in enumerate(self.requests[start:], start):
            if words in json.dumps(body, ensure_ascii=False):
                return number
        return None


def answer_as_claude(number: int, asked: Any) -> bytes:
    message = {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": asked.get("model", "x"),
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
    text = f"answer {number}"
    if not asked.get("stream"):
        message |= {"content": [{"type": "text", "text": text}], "stop_reason": "end_turn"}
        return json.dumps(message).encode()
    delta = {"type": "text_delta", "text": text}
    ended = {"stop_reason": "end_turn", "stop_sequence": None}
    return _encode_events(
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": ended, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    )


def answer_as_codex(number: int, _: Any) -> bytes:
    content = [{"type": "output_text", "text": f"answer {number}", "annotations": []}]
    item = {
        "type": "message",
        "id": f"m{number}",
        "role": "assistant",
        "status": "completed",
        "content": content,
    }
    usage = {
        "input_tokens": 1,
        "output_tokens": 1,
        "total_tokens": 2,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    response = {"id": f"r{number}", "object": "response", "output": [], "usage": usage}
    begun = {**response, "status": "in_progress"}
    ended = {**response, "status": "completed", "output": [item]}
    return _encode_events(
        {"type": "response.created", "response": begun},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": ended},
    )


def _encode_events(*events: dict[str, Any]) -> bytes:
    lines = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]
    return "".join(lines).encode()
