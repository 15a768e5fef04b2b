"""The process as a whole: how it starts, and how it ends."""

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest

from gatepost.config import Settings
from gatepost.errors import ConfigError
from gatepost.gateway import serve
from gatepost.testing import GatewayProcess
from gatepost.testing.gateway import launch_gateway
from tests.gateway.tools import (
    client,
    drop,
    mail,
    raw_websocket,
    settings,
    unix_socket,
    websocket,
)
from tests.waiting import wait_until


@contextlib.contextmanager
def _within(secs: float) -> Iterator[None]:
    start = time.monotonic()
    yield
    assert time.monotonic() - start < secs


def test_a_stopped_gateway_leaves_no_socket_and_no_address(
    start: Callable[..., GatewayProcess],
) -> None:
    gateway = start()
    assert (gateway.state_dir / "endpoint.json").exists()
    assert gateway.stop() == 0
    for name in ("endpoint.json", "gateway.sock", "journal.db-wal"):
        assert not (gateway.state_dir / name).exists()


def test_it_stops_soon_with_clients_of_every_kind_connected(
    start: Callable[..., GatewayProcess], box: str
) -> None:
    gateway = start()
    polls: list[object] = []

    def poll() -> None:
        with client(gateway) as http:
            try:
                polls.append(
                    http.post(f"/v1/mailboxes/{box}/dequeue", json={"wait_secs": 30}).status_code
                )
            except httpx.TransportError as error:
                polls.append(error)

    waiting = threading.Thread(target=poll)
    waiting.start()
    with (
        websocket(gateway) as subscribed,
        websocket(gateway) as polling,
        unix_socket(gateway) as line,
        raw_websocket(gateway),
    ):
        subscribed.ask("subscribe", mailbox=box)
        polling.send({"op": "dequeue", "mailbox": box, "wait_secs": 30})
        line.send({"op": "dequeue", "mailbox": box, "wait_secs": 30})
        drop(gateway, "waiting", {"op": "dequeue", "mailbox": box, "wait_secs": 30})
        # An answer to a later question shows that the question that waits has arrived.
        polling.ask("peek", mailbox=box)
        line.ask("peek", mailbox=box)
        # Nothing shows that the poll by HTTP and the dropped file have.
        time.sleep(0.1)
        with _within(5):
            assert gateway.stop() == 0
    waiting.join(5)
    assert len(polls) == 1, "who waited is told, or sees the connection end"
    assert (gateway.state_dir / "drop/out/waiting.json").exists()
    assert "Traceback" not in gateway.log.read_text()


def test_what_was_answered_before_a_stop_is_there_after_it(
    start: Callable[..., GatewayProcess], box: str
) -> None:
    gateway = start()
    acked: list[str] = []

    def send() -> None:
        with websocket(gateway) as frames, contextlib.suppress(Exception):
            for n in range(100_000):
                answer = frames.ask("enqueue", messages=[mail(f"m:{n}", box)])
                if "results" in answer:
                    acked.append(answer["results"][0]["msg_id"])

    sending = threading.Thread(target=send)
    sending.start()
    wait_until(lambda: len(acked) >= 20)
    assert gateway.stop() == 0
    sending.join(5)
    gateway.start()
    found: list[str] = []
    with client(gateway) as http:
        while page := http.get(
            f"/v1/mailboxes/{box}", params={"limit": 1000, "after": found[-1] if found else ""}
        ).json()["messages"]:
            found += [m["msg_id"] for m in page]
    assert acked
    assert found[: len(acked)] == acked
    assert len(found) - len(acked) <= 1, "at most the one whose answer was on its way"


def test_a_long_poll_broken_off_by_a_stop_costs_its_mail_nothing(
    start: Callable[..., GatewayProcess], box: str
) -> None:
    gateway = start()
    with websocket(gateway) as frames:
        frames.send({"op": "dequeue", "mailbox": box, "wait_secs": 30})
        frames.ask("peek", mailbox=box)
        gateway.stop()
    gateway.start()
    with client(gateway) as http:
        http.post("/v1/enqueue", json=mail("m:1", box))
        (message,) = http.post(f"/v1/mailboxes/{box}/dequeue", json={}).json()["messages"]
    assert message["attempt"] == 0


def test_interrupting_it_ends_it_cleanly_too(start: Callable[..., GatewayProcess]) -> None:
    gateway = start()
    os.kill(gateway.pid, signal.SIGINT)
    assert gateway._reap() == 0
    assert not (gateway.state_dir / "endpoint.json").exists()


@pytest.fixture
def process_settings() -> Iterator[None]:
    """A gateway changes settings of its whole process; this process gets its own back."""
    mask, interval = os.umask(0o022), sys.getswitchinterval()
    os.umask(mask)
    yield
    os.umask(mask)
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("process_settings")
def test_a_port_in_use_is_explained_before_anything_is_opened(state: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=r"listen\.port"):
            serve.run_gateway(settings(state, listen__port=port))
    assert not state.exists()


def test_two_gateways_cannot_share_a_directory(start: Callable[..., GatewayProcess]) -> None:
    gateway = start()
    other = GatewayProcess(gateway.state_dir)
    other.spawn()
    assert other._reap() != 0
    assert "in use by another gateway" in other.log.read_text()
    assert gateway.get("/v1/status")["accepting"], "the first is not disturbed"
    assert (gateway.state_dir / "gateway.sock").exists()


def test_doors_can_be_left_shut(start: Callable[..., GatewayProcess]) -> None:
    gateway = start(listen__unix_socket="false", listen__drop_folder="false")
    assert not (gateway.state_dir / "gateway.sock").exists()
    assert not (gateway.state_dir / "drop").exists()
    endpoint = json.loads((gateway.state_dir / "endpoint.json").read_bytes())
    assert endpoint["socket"] is None


# -- a writer that hangs

_HANGING_GATEWAY = """
import sys, time
from pathlib import Path
from gatepost.delivery.coordinator import DeliveryCoordinator
from gatepost.gateway.__main__ import main

before_commit = DeliveryCoordinator.before_commit

def hang_before_commit(self, tx):
    while (Path(sys.argv[1]) / "hang").exists():
        time.sleep(0.01)
    before_commit(self, tx)

DeliveryCoordinator.before_commit = hang_before_commit
main(sys.argv[1:])
"""


def test_a_writer_that_hangs_is_seen_and_does_not_keep_the_process_from_ending(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "hanging_gateway.py"
    script.write_text(_HANGING_GATEWAY)
    monkeypatch.setattr(GatewayProcess, "launch", partial(launch_gateway, program=(str(script),)))
    with (
        GatewayProcess(state, journal__stall_secs=0.1, node__stop_secs=1) as gateway,
        client(gateway) as http,
    ):
        (state / "hang").touch()
        with pytest.raises(httpx.ReadTimeout):
            http.post("/v1/enqueue", json=mail("m:1", "box"), timeout=0.5)
        wait_until(lambda: http.get("/healthz").status_code == 503)
        for path in ("/readyz", "/healthz"):
            refused = http.get(path).json()
            assert refused["code"] == "storage_failed"
            assert "one commit" in refused["message"]
        assert "gatepost_journal_busy_seconds 0.0" not in http.get("/metrics").text
        assert gateway.stop() == 1
    assert "did not stop within 1 s" in gateway.log.read_text()


@pytest.mark.parametrize(
    ("host", "bound", "local"),
    [
        ("0.0.0.0", "http://0.0.0.0:", "http://127.0.0.1:"),
        ("127.0.0.1", "http://127.0.0.1:", "http://127.0.0.1:"),
    ],
)
def test_the_log_names_the_address_it_listens_on_and_clients_get_one_they_can_use(
    host: str, bound: str, local: str
) -> None:
    with socket.create_server((host, 0)) as listener:
        port = listener.getsockname()[1]
        assert serve._bound_url(Settings(), listener) == f"{bound}{port}"
        assert serve._listener_url(Settings(), listener) == f"{local}{port}"


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads Linux's list of libraries")
def test_a_fresh_gateway_has_loaded_no_heavy_library_that_it_may_never_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A process of its own, which shares no library that other tests have loaded.
    monkeypatch.setattr(GatewayProcess, "launch", staticmethod(launch_gateway))
    with GatewayProcess(tmp_path / "gateway") as gateway:
        loaded = Path(f"/proc/{gateway.pid}/maps").read_text()
        status = Path(f"/proc/{gateway.pid}/status").read_text()
    assert "/apsw/" in loaded
    heavy = ("/cryptography/", "/pydantic_core/", "/cedarpy/", "/pyarrow/", "/numpy/")
    assert [name for name in heavy if name in loaded] == []
    (resident,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))
    assert int(resident) < 80 << 10, "kB"
