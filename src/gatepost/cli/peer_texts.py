"""How `gatepost status` and `gatepost nodes` put the state of another gateway into words."""

from gatepost.cli import output
from gatepost.wire import PeerStatus


def reach_text(peer: PeerStatus) -> str:
    if peer.linked:
        return "directly"
    return "not reached" if peer.relay is None else f"relayed via {peer.relay}"


def heard_text(peer: PeerStatus) -> str:
    return "never" if not peer.last_heard_at else output.format_ago(peer.last_heard_at)


def waiting_text(peer: PeerStatus) -> str:
    """The messages that have no receipt of it, and those whose turns have not ended."""
    if not peer.waiting and not peer.accepted:
        return ""
    since = "" if peer.waiting_since is None else f" for {output.format_age(peer.waiting_since)}"
    waiting = f"{output.format_count(peer.waiting, 'message')}{since}" if peer.waiting else ""
    accepted = f"{peer.accepted} in work there" if peer.accepted else ""
    return ", ".join(filter(None, (waiting, accepted)))
