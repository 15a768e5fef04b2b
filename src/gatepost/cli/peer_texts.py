"""How `gatepost status` and `gatepost nodes` put the state of another gateway into words."""

from gatepost.cli import output
from gatepost.wire.gateway_views import PeerStatus


def waiting_text(peer: PeerStatus) -> str:
    """The messages that have no receipt of it, and those whose turns have not ended."""
    if not peer.waiting and not peer.accepted:
        return ""
    since = "" if peer.waiting_since is None else f" for {output.format_age(peer.waiting_since)}"
    waiting = f"{output.format_count(peer.waiting, 'message')}{since}" if peer.waiting else ""
    accepted = f"{peer.accepted} accepted there, not processed yet" if peer.accepted else ""
    return ", ".join(filter(None, (waiting, accepted)))
