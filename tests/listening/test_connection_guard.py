"""Plain HTTP is for this machine, unless the settings trust the network."""

from types import SimpleNamespace
from typing import Any

import pytest

from gatepost.config import RoomSettings
from gatepost.errors import Forbidden
from gatepost.listening.connection_guard import ConnectionGuard
from gatepost.testing import ManualClock

SERVER = ("192.0.2.1", 7433)


def _connection(client: str, scheme: str) -> Any:
    scope = {"scheme": scheme, "server": SERVER}
    return SimpleNamespace(scope=scope, client=SimpleNamespace(host=client))


def _guard(clock: ManualClock, *, allow_plain: bool = False) -> ConnectionGuard:
    return ConnectionGuard(RoomSettings(allow_plain=allow_plain), clock)


@pytest.mark.parametrize("scheme", ["http", "ws"])
def test_from_elsewhere_nodes_come_over_tls(clock: ManualClock, scheme: str) -> None:
    with pytest.raises(Forbidden, match="use TLS"):
        _guard(clock).check_attempt(_connection("192.0.2.7", scheme))
    _guard(clock, allow_plain=True).check_attempt(_connection("192.0.2.7", scheme))
    _guard(clock).check_attempt(_connection("192.0.2.7", f"{scheme}s"))


@pytest.mark.parametrize("client", ["127.0.0.1", "::1", SERVER[0]])
def test_nobody_listens_between_two_programs_of_this_machine(
    clock: ManualClock, client: str
) -> None:
    _guard(clock).check_attempt(_connection(client, "http"))
