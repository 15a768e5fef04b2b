"""The client of the control port, against a server that replies as Tor does."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from gatepost.errors import TransportUnavailable
from gatepost.mesh.transports import tor_control
from gatepost.mesh.transports.tor_control import TorCommandFailed, TorControl, TorControlLost

REPLIES = {
    "GETINFO version": "250-version=0.4.9\r\n250 OK\r\n",
    "GETINFO hs": "250+hs=\r\nfirst\r\n..dot\r\n.\r\n250 OK\r\n",
    "ADD_ONION ED25519-V3:key Flags=DiscardPK Port=80,127.0.0.1:1": (
        "650 HS_DESC CREATED\r\n250-ServiceID=abc\r\n250 OK\r\n"
    ),
    "DEL_ONION abc": "250 OK\r\n",
}


class FakeTor:
    def __init__(self) -> None:
        self.heard: list[str] = []
        self.port = 0
        self.ended = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := (await reader.readline()).decode().rstrip("\r\n"):
            self.heard.append(line)
            if line.startswith("+"):
                while (data := (await reader.readline()).decode().rstrip("\r\n")) != ".":
                    self.heard.append(data)
                reply = "250 OK\r\n"
            elif line == "SILENCE":
                continue
            elif line.startswith("AUTHENTICATE"):
                known = line == f"AUTHENTICATE {b'cookie'.hex()}"
                reply = "250 OK\r\n" if known else "515 Authentication failed\r\n"
            else:
                reply = REPLIES.get(line, '510 Unrecognized command "x"\r\n')
            writer.write(reply.encode())
        writer.close()
        self.ended.set()


def with_tor(
    tmp_path: Path, use: Callable[[TorControl, FakeTor], Awaitable[None]], cookie: bytes = b"cookie"
) -> None:
    (tmp_path / "cookie").write_bytes(cookie)

    async def run() -> None:
        tor = FakeTor()
        server = await asyncio.start_server(tor.serve, "127.0.0.1", 0)
        tor.port = server.sockets[0].getsockname()[1]
        try:
            control = await TorControl.connect("127.0.0.1", tor.port, tmp_path / "cookie")
            await use(control, tor)
            await control.close()
        finally:
            await tor.ended.wait()
            server.close()

    asyncio.run(run())


def test_replies_of_one_line_of_several_and_with_data_are_read(tmp_path: Path) -> None:
    async def use(control: TorControl, tor: FakeTor) -> None:
        assert await control.read_info("version") == "0.4.9"
        assert await control.read_info("hs") == "first\n.dot"
        assert await control.add_onion("key", [(80, "127.0.0.1:1")]) == "abc.onion"
        await control.delete_onion("abc.onion")
        with pytest.raises(TorCommandFailed, match="510"):
            await control.ask("NONSENSE")

    with_tor(tmp_path, use)


def test_after_a_reply_that_did_not_come_no_later_one_is_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(control: TorControl, tor: FakeTor) -> None:
        monkeypatch.setattr(tor_control, "_REPLY_SECS", 0.01)
        with pytest.raises(TorControlLost, match="does not answer"):
            await control.ask("SILENCE")
        monkeypatch.undo()
        with pytest.raises(TorControlLost):
            await control.read_info("version")

    with_tor(tmp_path, use)


def test_lines_of_data_are_escaped(tmp_path: Path) -> None:
    async def use(control: TorControl, tor: FakeTor) -> None:
        await control.ask("HSPOST HSADDRESS=abc", "one\n.two\n")
        assert tor.heard[-3:] == ["+HSPOST HSADDRESS=abc", "one", "..two"]

    with_tor(tmp_path, use)


def test_a_wrong_cookie_and_a_port_without_tor_are_named(tmp_path: Path) -> None:
    async def never(control: TorControl, tor: FakeTor) -> None:
        raise AssertionError

    with pytest.raises(TransportUnavailable, match="refuses the cookie"):
        with_tor(tmp_path, never, b"wrong")
    with pytest.raises(TransportUnavailable, match="control port"):
        asyncio.run(TorControl.connect("127.0.0.1", 1, tmp_path / "cookie"))
