"""A client of Tor's control port, as far as a gateway needs it.

Replies and waits are bounded. Keys go to the control port of this machine, never into argv.
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from gatepost.errors import TransportUnavailable

_REPLY_SECS = 30.0
_MAX_REPLY_LINES = 20_000
_MAX_LINE_BYTES = 64 * 1024
_ASYNC_EVENT = "650"


class TorCommandFailed(Exception):
    """Tor refused a command. The text is Tor's reply, which quotes no key."""


class TorControlLost(Exception):
    """The connection is lost, and with it every service that was added over it."""


class TorControl:
    """One authenticated connection. Services added over it end with it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._asking = asyncio.Lock()

    @classmethod
    async def connect(cls, host: str, port: int, cookie_file: Path) -> Self:
        try:
            async with asyncio.timeout(_REPLY_SECS):
                cookie = cookie_file.read_bytes()
                streams = await asyncio.open_connection(host, port, limit=_MAX_LINE_BYTES)
        except (OSError, TimeoutError) as error:
            raise TransportUnavailable(
                f"the control port of Tor at {host}:{port} cannot be used: {error}"
            ) from None
        control = cls(*streams)
        try:
            await control.ask(f"AUTHENTICATE {cookie.hex()}")
        except (TorCommandFailed, TorControlLost) as failed:
            await control.close()
            raise TransportUnavailable(
                f"Tor at {host}:{port} refuses the cookie in {cookie_file}: {failed}"
            ) from None
        return control

    async def ask(self, command: str, data: str | None = None) -> list[str]:
        """Send a command, with lines of data if it takes some; return the lines of the reply."""
        text = f"{command}\r\n" if data is None else f"+{command}\r\n{_escape_data(data)}.\r\n"
        async with self._asking:
            try:
                async with asyncio.timeout(_REPLY_SECS):
                    self._writer.write(text.encode())
                    await self._writer.drain()
                    return await self._read_reply()
            except TorCommandFailed:
                raise
            except BaseException as error:
                # The rest of this reply would be taken for the next one.
                self._writer.close()
                if isinstance(error, OSError):
                    raise TorControlLost(f"Tor does not answer: {error}") from None
                raise

    async def read_info(self, name: str) -> str:
        """The value of a `GETINFO` of one name."""
        first, *more = await self.ask(f"GETINFO {name}")
        value = first.partition("=")[2]
        return "\n".join([value, *more]).strip("\n")

    async def add_onion(self, key_blob: str, ports: Iterable[tuple[int, str]]) -> str:
        """Open an onion service until this connection ends; return its host name."""
        targets = " ".join(f"Port={port},{target}" for port, target in ports)
        reply = await self.ask(f"ADD_ONION ED25519-V3:{key_blob} Flags=DiscardPK {targets}")
        return reply[0].partition("=")[2] + ".onion"

    async def delete_onion(self, host: str) -> None:
        await self.ask(f"DEL_ONION {host.removesuffix('.onion')}")

    async def close(self) -> None:
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            return

    async def _read_reply(self) -> list[str]:
        """The lines of one reply without their codes. Events in between are dropped."""
        lines: list[str] = []
        while len(lines) < _MAX_REPLY_LINES:
            line = await self._read_line()
            code, separator, text = line[:3], line[3:4], line[4:]
            found = [text, *(await self._read_data() if separator == "+" else [])]
            if code == _ASYNC_EVENT:
                continue
            lines += found
            if separator == " ":
                if not code.startswith("2"):
                    raise TorCommandFailed(f"{code} {text}"[:300])
                return lines[:-1] if len(lines) > 1 and text == "OK" else lines
        raise TorControlLost("the reply has no end")

    async def _read_data(self) -> list[str]:
        lines: list[str] = []
        while (line := await self._read_line()) != ".":
            lines.append(line.removeprefix(".") if line.startswith("..") else line)
            if len(lines) > _MAX_REPLY_LINES:
                raise TorControlLost("the reply has no end")
        return lines

    async def _read_line(self) -> str:
        try:
            line = await self._reader.readuntil(b"\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            raise TorControlLost("Tor closed its control port") from None
        return line.decode(errors="replace").rstrip("\r\n")


def _escape_data(data: str) -> str:
    """Lines as the control port takes them: a leading dot is doubled."""
    lines = data.replace("\r\n", "\n").rstrip("\n").split("\n")
    return "".join(f".{line}\r\n" if line.startswith(".") else f"{line}\r\n" for line in lines)
