"""Real gateways of which one has a wrong clock: it is named everywhere, and terms do not race."""

from collections.abc import Mapping
from pathlib import Path
from typing import IO

from gatepost.testing.gateway import StartedProcess, launch_gateway
from tests.live_mesh.test_election import leader, mesh, metrics
from tests.live_mesh.test_lease_release import three_leaders
from tests.live_mesh.tools import Gateway
from tests.waiting import wait_until

_SCRIPT = str(Path(__file__).with_name("shifted_gateway.py"))
_AHEAD_SECS = 3660
_WORDS = "clock of ann is 61 min ahead of 2 of 2 peers: set its clock (timedatectl)"


def launch_shifted(arguments: list[str], env: Mapping[str, str], log: IO[bytes]) -> StartedProcess:
    env = {**env, "CLOCK_FILE": f"{arguments[0]}.clock"}
    return launch_gateway(arguments, env, log, program=(_SCRIPT,))


class ShiftedGateway(Gateway):
    """A gateway whose clock the test sets."""

    launch = staticmethod(launch_shifted)

    def set_clock(self, ahead_secs: int) -> None:
        draft = Path(f"{self.state_dir}.new")
        draft.write_text(str(ahead_secs))
        draft.replace(f"{self.state_dir}.clock")


def counter(gateway: Gateway) -> int:
    return int(mesh(gateway)["term"][0])


def clock_incidents(gateway: Gateway) -> list[str]:
    page = gateway.call("GET", "/incidents?class=clock_skew")
    return [incident["detail"] for incident in page["incidents"]]


def test_a_publisher_with_a_wrong_clock_is_named_and_replaced_once(
    tmp_path: Path,
) -> None:
    with three_leaders(tmp_path, ShiftedGateway) as three:
        check_wrong_clock(three)


def check_wrong_clock(three: list[ShiftedGateway]) -> None:
    ann, bob, cat = three
    before = counter(ann)
    ann.set_clock(_AHEAD_SECS)
    wait_until(lambda: leader(bob, cat) == "bob")
    wait_until(lambda: all(mesh(gateway)["problems"] == [_WORDS] for gateway in three))
    wait_until(lambda: all(clock_incidents(gateway) == [_WORDS] for gateway in three))
    assert mesh(ann)["is_barred"] and mesh(ann)["publisher"] != "ann"
    for gateway in three:
        assert gateway.call("GET", "/status")["mesh_problems"] == [_WORDS]
        assert gateway.call("GET", "/room/nodes")["mesh_problems"] == [_WORDS]
        assert gateway.log.read_text().count(_WORDS) == 1
    assert 'gatepost_mesh_clock_offset_seconds{node="ann"} 36' in metrics(bob)

    # Heartbeats for many times suspicion and grace: nobody fights.
    term, received = counter(bob), mesh(bob)["received"]
    wait_until(lambda: mesh(bob)["received"] > received + 75, 60)
    assert leader(bob, cat) == "bob"
    assert counter(bob) == term <= before + 2

    ann.set_clock(0)
    wait_until(lambda: leader(*three) == "bob")
    wait_until(lambda: not any(mesh(gateway)["problems"] for gateway in three))
    assert counter(ann) == term
    assert all(len(clock_incidents(gateway)) == 1 for gateway in three)
