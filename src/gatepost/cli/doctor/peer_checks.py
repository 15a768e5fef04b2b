"""Checks of other gateways: whether each side reaches the other, their clocks and versions."""

from collections.abc import Sequence

from gatepost import __version__
from gatepost.cli.doctor.finding import Finding, Findings
from gatepost.durations import format_duration
from gatepost.wire.room_views import NodeList, NodeView, PeerReach

_REACH_ADVICE = (
    "let TCP connections to that port in (firewall, NAT), or set room.public_url to an address at"
    " which others reach this machine, and restart"
)


def check_members(nodes: NodeList) -> Findings:
    """A gateway without an address, such as a laptop, comes by itself: it is not missed."""
    for node in nodes.nodes:
        if node.is_self or node.endpoint is None or node.peer is None or not node.peer.problem:
            continue
        yield Finding(
            "peers",
            f"{node.id} at {node.endpoint} is not connected: {node.peer.problem}",
            f"start that gateway, or open the way to it; if it is gone for good: {_revoke(node)}",
        )
    known = {node.endpoint for node in nodes.nodes}
    for address, problem in nodes.problems.items():
        if _websocket(address) not in known:
            yield Finding(
                "peers",
                f"{address}, which this gateway joined through or room.seeds names, is not"
                f" connected: {problem}",
                "correct room.seeds, or join again through a gateway that answers",
                is_advice=True,
            )


def _revoke(node: NodeView) -> str:
    return f"gatepost revoke {node.id}"


def _websocket(url: str) -> str:
    return "ws" + url.removeprefix("http")


def check_reach(reaches: Sequence[PeerReach], endpoint: str | None) -> Findings:
    """What linked gateways say of the address that the room has for this one."""
    for each in reaches:
        if each.is_silent:
            problem = f"{each.node} is linked, and did not say whether it reaches this gateway"
            yield Finding(
                "peers", problem, f"see that gateway's log: gatepost doctor at {each.node}"
            )
        elif each.problem:
            yield Finding(
                "ports",
                f"{each.node} does not reach this gateway at {endpoint}: {each.problem}",
                _REACH_ADVICE,
            )


def check_clocks(reaches: Sequence[PeerReach], tolerance_secs: int) -> Findings:
    """A clock that most others contradict is the wrong one; between two, either may be."""
    told = [each for each in reaches if each.version]
    off = [each for each in told if abs(each.ahead_ms) > tolerance_secs * 1000]
    if len(off) > 1 and 2 * len(off) > len(told):
        ahead = sorted(each.ahead_ms for each in off)[len(off) // 2]
        yield Finding(
            "clock",
            f"the clock of this machine is {_gap(-ahead)} {len(off)} of {len(told)} peers",
            "set it: timedatectl set-ntp true",
        )
        return
    for each in off:
        yield Finding(
            "clock",
            f"the clock of {each.node} is {_gap(each.ahead_ms)} this machine's",
            f"set the one that is wrong, at {each.node} or here: timedatectl set-ntp true",
        )


def _gap(ahead_ms: int) -> str:
    return f"{format_duration(abs(ahead_ms) // 1000)} {'ahead of' if ahead_ms > 0 else 'behind'}"


def check_versions(reaches: Sequence[PeerReach]) -> Findings:
    for each in reaches:
        if each.version not in ("", __version__):
            older = each.node if each.version < __version__ else "this gateway"
            yield Finding(
                "versions",
                f"{each.node} runs version {each.version}, and this gateway {__version__}",
                f"upgrade {older}, one gateway at a time",
                is_advice=True,
            )
