"""A proxy on loopback that adds a token: for programs that test servers and know no tokens."""

import contextlib
import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

from gatepost.testing import GatewayProcess

_PER_HOP = ("connection", "transfer-encoding", "content-length", "keep-alive")


class BearerProxy:
    """Passes requests on to the gateway, as an agent with the local token."""

    def __init__(self, gateway: GatewayProcess, agent: str) -> None:
        added = {"authorization": f"Bearer {gateway.token}", "gatepost-agent": agent}

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def _pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                headers = {k: v for k, v in self.headers.items() if k.lower() not in _PER_HOP}
                connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
                try:
                    connection.request(self.command, self.path, body, {**headers, **added})
                    self._answer(connection.getresponse())
                finally:
                    connection.close()

            def _answer(self, answer: http.client.HTTPResponse) -> None:
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in _PER_HOP:
                        self.send_header(name, value)
                self.send_header("connection", "close")
                self.end_headers()
                # A stream that is open ends with the gateway.
                with contextlib.suppress(http.client.HTTPException, OSError):
                    while piece := answer.read1(65_536):
                        self.wfile.write(piece)
                self.close_connection = True

            do_GET = do_POST = do_DELETE = _pass_on

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/mcp"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
