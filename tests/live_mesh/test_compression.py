"""Links that are compressed: asked for on both sides, and bounded."""

import zlib
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from gatepost.testing import GatewayProcess
from tests.gateway.tools import client, mail
from tests.live_mesh.tools import Gateway
from tests.waiting import wait_until


@pytest.mark.parametrize(("ours", "theirs"), [(True, True), (True, False), (False, True)])
def test_gateways_meet_whoever_of_them_compresses(tmp_path: Path, ours: bool, theirs: bool) -> None:
    with (
        Gateway(tmp_path, "ann", delivery__compress_links=ours) as ann,
        Gateway(tmp_path, "ben", delivery__compress_links=theirs) as ben,
    ):
        ben.join(ann)
        ben.call("PUT", "/agents/bob")
        wait_until(lambda: any(each["id"] == "bob" for each in ann.call("GET", "/room/agents")))
        sent = {"from_agent": "al", "to_agent": "bob", "payload": "hello " * 1000}
        path = "/messages?wait=accepted&timeout=20"
        assert ann.call("POST", path, sent)["accepted_at"]


def _bomb(size: int) -> bytes:
    """A frame that is small, and large once it is decompressed; masked with zeros."""
    deflate = zlib.compressobj(9, wbits=-12)
    data = deflate.compress(b" " * size) + deflate.flush(zlib.Z_SYNC_FLUSH)
    data = data[:-4]
    assert len(data) < 65_536
    return bytes([0xC2, 0xFE]) + len(data).to_bytes(2) + bytes(4) + data


def test_a_message_is_bounded_when_it_is_decompressed(tmp_path: Path) -> None:
    with GatewayProcess(tmp_path / "gateway", delivery__compress_links=True) as gateway:
        url = gateway.url.replace("http", "ws", 1) + "/v1/ws"
        headers = {"authorization": f"Bearer {gateway.token}"}
        with connect(url, additional_headers=headers, compression="deflate") as socket:
            assert socket.protocol.extensions, "the gateway compresses if it is asked to"
            socket.socket.sendall(_bomb(40_000_000))
            with pytest.raises(ConnectionClosed) as closed:
                socket.recv(timeout=20)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1009
        with client(gateway) as http:
            assert http.post("/v1/enqueue", json=mail("m:1", "box")).is_success


def test_without_the_setting_nothing_is_compressed(tmp_path: Path) -> None:
    with GatewayProcess(tmp_path / "gateway") as gateway:
        url = gateway.url.replace("http", "ws", 1) + "/v1/ws"
        headers = {"authorization": f"Bearer {gateway.token}"}
        with connect(url, additional_headers=headers, compression="deflate") as socket:
            assert socket.protocol.extensions == []
