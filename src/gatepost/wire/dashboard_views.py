"""API bodies for links to the dashboard."""

from msgspec import Struct


class NewDashboardLink(Struct, frozen=True, forbid_unknown_fields=True):
    """With `read_only`, the session that the link opens can change nothing."""

    read_only: bool = False


class DashboardLink(Struct, frozen=True):
    """`code` opens one session, once, until `expires_at` (epoch milliseconds)."""

    code: str
    expires_at: int
