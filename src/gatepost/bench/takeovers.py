"""Measures takeovers of real gateways: the publisher is killed again and again.

Three gateways on this machine have shortened timers and speak over loopback UDP. A takeover lasts
from the kill until both others honour the same next publisher. The killed gateway comes back before
the next kill.
"""

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from gatepost.bench.joined_gateways import call_gateway, join_gateways
from gatepost.bench.mailbox import QUIET_SETTINGS
from gatepost.errors import BenchFailed
from gatepost.mesh.mesh_time import MeshTimers
from gatepost.testing import GatewayProcess

_NAMES = ("ann", "bob", "cat")
_TIMERS = MeshTimers(heartbeat_ms=100, suspect_ms=500, grace_ms=500)
_SETTINGS: dict[str, object] = {
    "mesh__transport": "udp",
    "mesh__port": 0,
    "mesh__heartbeat_secs": _TIMERS.heartbeat_ms / 1000,
    "mesh__suspect_secs": _TIMERS.suspect_ms / 1000,
    "mesh__grace_secs": _TIMERS.grace_ms / 1000,
    **QUIET_SETTINGS,
}
_TIMEOUT_SECS = 120.0
_LOOK_SECS = 0.01


def measure_process_takeovers(state_dir: Path, kills: int) -> list[float]:
    """The duration of each takeover in units of suspicion and grace, the shortest first."""
    if not kills:
        return []
    with tempfile.TemporaryDirectory(prefix="bench-", dir=state_dir) as folder, ExitStack() as ends:
        mesh = TakeoverMesh(Path(folder), ends)
        takeovers = [mesh.replace_publisher() for _ in range(kills)]
    return sorted(secs * 1000 / _TIMERS.takeover_ms for secs in takeovers)


class TakeoverMesh:
    """Gateways of one room. All may lead."""

    def __init__(self, folder: Path, ends: ExitStack) -> None:
        self._gateways = {
            name: GatewayProcess(folder / name, node__id=name, **_SETTINGS) for name in _NAMES
        }
        for gateway in self._gateways.values():
            ends.enter_context(gateway)
        first, *others = _NAMES
        for name in others:
            join_gateways(self._gateways[first], self._gateways[name], name)

    def replace_publisher(self) -> float:
        """Kill the publisher; returns the seconds until the others honour another one."""
        publisher = _wait_for(self._settled_publisher, "the gateways did not agree")
        killed = self._gateways[publisher]
        others = [name for name in _NAMES if name != publisher]
        killed.kill9()
        began = time.monotonic()
        _wait_for(lambda: self._common_publisher(others, publisher), "no node took over")
        took = time.monotonic() - began
        killed.start()
        return took

    def _settled_publisher(self) -> str | None:
        """The publisher, once all gateways honour it and hear each other."""
        for gateway in self._gateways.values():
            peers = call_gateway(gateway, "GET", "/v1/mesh")["peers"]
            if [peer["state"] for peer in peers] != ["alive"] * (len(_NAMES) - 1):
                return None
        return self._common_publisher(list(_NAMES), None)

    def _common_publisher(self, names: list[str], dead: str | None) -> str | None:
        shown = [call_gateway(self._gateways[name], "GET", "/v1/mesh") for name in names]
        publisher: str | None = shown[0]["publisher"]
        is_common = all(
            (each["publisher"], each["term"]) == (publisher, shown[0]["term"]) for each in shown
        )
        return publisher if is_common and publisher != dead else None


def _wait_for(find: Callable[[], str | None], failure: str) -> str:
    deadline = time.monotonic() + _TIMEOUT_SECS
    while (found := find()) is None:
        if time.monotonic() > deadline:
            raise BenchFailed(f"{failure} within {_TIMEOUT_SECS:.0f} s")
        time.sleep(_LOOK_SECS)
    return found
