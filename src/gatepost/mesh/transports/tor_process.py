"""A Tor of this gateway: its process, its files in the state directory, and its start."""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from gatepost.child_process import ChildProcess, start_process, stop_process, wait_for_exit
from gatepost.errors import TransportUnavailable
from gatepost.mesh.transports.commands import find_tool
from gatepost.mesh.transports.tor_control import TorCommandFailed, TorControl, TorControlLost

log = logging.getLogger(__name__)

_START_SECS = 30.0
_PAUSE_SECS = 0.1
_LOOPBACK = "127.0.0.1"
_COOKIE_BYTES = 32


class TorProcess:
    """`extra_settings` is a file with further lines of torrc, for example of a private network.

    `lines` are further lines too, those of the caller.
    """

    def __init__(
        self,
        folder: Path,
        extra_settings: Path | None = None,
        bootstrap_secs: float = 120.0,
        lines: tuple[str, ...] = (),
    ) -> None:
        self._folder = folder
        self._extra_settings = extra_settings
        self._lines = lines
        self._bootstrap_secs = bootstrap_secs
        self._process: ChildProcess | None = None
        self.control: TorControl | None = None
        self.socks_port = 0

    async def start(self) -> TorControl:
        """Return once Tor takes commands. `wait_for_network` waits until it can do something."""
        program = find_tool("tor", "tor")
        settings = self._write_settings()
        self._process = await start_process(program, "-f", settings)
        try:
            self.control = await self._open_control()
        except BaseException:
            await self.stop()
            raise
        return self.control

    async def stop(self) -> None:
        control, self.control = self.control, None
        if control is not None:
            await control.close()
        process, self._process = self._process, None
        if process is not None:
            await stop_process(process)

    def _write_settings(self) -> Path:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for old in ("control-port", "cookie"):
            with contextlib.suppress(FileNotFoundError):
                (self._folder / old).unlink()
        lines = [
            f"DataDirectory {self._folder / 'data'}",
            # A Tor that is started again is found at the same port.
            f"SocksPort {self.socks_port or 'auto'}",
            "ControlPort auto",
            f"ControlPortWriteToFile {self._folder / 'control-port'}",
            "CookieAuthentication 1",
            f"CookieAuthFile {self._folder / 'cookie'}",
            f"Log notice file {self._folder / 'tor.log'}",
            f"__OwningControllerProcess {os.getpid()}",
            *self._lines,
        ]
        if self._extra_settings is not None:
            lines.append(f"%include {self._extra_settings}")
        settings = self._folder / "torrc"
        settings.write_text("\n".join(lines) + "\n")
        return settings

    async def _open_control(self) -> TorControl:
        try:
            async with asyncio.timeout(_START_SECS):
                port = await self._wait_for(self._read_control_port)
        except TimeoutError:
            raise TransportUnavailable(f"tor does not start; see {self._log_file}") from None
        control = await TorControl.connect(_LOOPBACK, port, self._folder / "cookie")
        try:
            socks = await control.read_info("net/listeners/socks")
            self.socks_port = int(socks.split()[0].strip('"').rpartition(":")[2])
        except (TorCommandFailed, TorControlLost, IndexError, ValueError):
            await control.close()
            raise TransportUnavailable(f"tor opens no SOCKS port; see {self._log_file}") from None
        return control

    async def _wait_for(self, look: Callable[[], int | None]) -> int:
        while (found := look()) is None:
            if self._process is None or self._process.poll() is not None:
                raise TransportUnavailable(f"tor ended at its start; see {self._log_file}")
            await asyncio.sleep(_PAUSE_SECS)
        return found

    def _read_control_port(self) -> int | None:
        """The control port, once the cookie is written too; None before that."""
        try:
            text = (self._folder / "control-port").read_text()
            if (self._folder / "cookie").stat().st_size != _COOKIE_BYTES:
                return None
        except FileNotFoundError:
            return None
        port = text.strip().rpartition(":")[2]
        return int(port) if port.isdigit() else None

    async def wait_for_network(self) -> None:
        """Return once Tor is connected to its network."""
        if (control := self.control) is None:
            raise TransportUnavailable("tor does not run")
        deadline = time.monotonic() + self._bootstrap_secs
        while "PROGRESS=100" not in (progress := await _read_progress(control)):
            if time.monotonic() > deadline:
                raise TransportUnavailable(
                    f"tor found no network within {self._bootstrap_secs:g} s ({progress[:200]});"
                    f" see {self._log_file}"
                )
            await asyncio.sleep(_PAUSE_SECS)

    async def wait_until_ended(self) -> None:
        """Return once the process has ended; at once if there is none."""
        if self._process is not None:
            await wait_for_exit(self._process)

    @property
    def _log_file(self) -> Path:
        return self._folder / "tor.log"


async def _read_progress(control: TorControl) -> str:
    try:
        return await control.read_info("status/bootstrap-phase")
    except (TorCommandFailed, TorControlLost) as failed:
        raise TransportUnavailable(f"tor does not say how far it is: {failed}") from None
