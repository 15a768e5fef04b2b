"""A cable between gateways: a TCP relay that can be cut, mended, and cut in one direction."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Self


class Cable:
    """Relays to `port` on loopback. While `deaf`, a WebSocket's upgrade is never answered.

    While `muted`, nothing of the side that dials gets through.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.port = 0
        self.deaf = self.muted = False
        self._whole = True
        self._ends: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._run(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(5)

    @contextlib.contextmanager
    def broken(self) -> Iterator[None]:
        """Nothing passes while this lasts."""
        self.cut()
        try:
            yield
        finally:
            self._whole = True

    def cut(self) -> None:
        with self._lock:
            self._whole = False
            ends, self._ends = self._ends, set()
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _run(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self._connect(near)

    def _connect(self, near: socket.socket) -> None:
        try:
            far = socket.create_connection(("127.0.0.1", self.port))
        except OSError:
            near.close()
            return
        with self._lock:
            if not self._whole:
                near.close()
                far.close()
                return
            self._ends |= {near, far}
        upgrading = threading.Event()
        self._run(self._carry, near, far, upgrading, True)
        self._run(self._carry, far, near, upgrading, False)

    def _carry(
        self, source: socket.socket, sink: socket.socket, upgrading: threading.Event, asks: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if asks and b"upgrade: websocket" in data.lower():
                    upgrading.set()
                is_lost = self.muted if asks else self.deaf and upgrading.is_set()
                if not is_lost:
                    sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        source.close()
