"""One-time links and sessions of the dashboard. They are memory: a restart ends them all.

A link is the operator's word, and good once within a minute. It is exchanged for a session, whose
secret is in a cookie that no script reads; request_checks.py reads it from each request. Only
hashes of secrets are kept.
"""

import hashlib
import hmac

from msgspec import Struct

from gatepost.clock import Clock
from gatepost.errors import Unauthorized, Unavailable

LINK_MS = 60_000
SESSION_MS = 12 * 3_600_000
_IDLE_MS = 2 * 3_600_000
_MAX_LINKS = 16
_MAX_SESSIONS = 64


class Session(Struct):
    """One browser. `form_secret` is in each of its forms; `notice` is shown once."""

    id: str
    read_only: bool
    form_secret: str
    expires_at: int
    seen_at: int
    notice: str = ""
    is_ended: bool = False

    def is_form_secret(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.form_secret.encode())


class _Link(Struct, frozen=True):
    read_only: bool
    expires_at: int


class DashboardSessions:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._links: dict[str, _Link] = {}
        self._sessions: dict[str, Session] = {}

    def create_link(self, *, read_only: bool) -> str:
        """The secret of a link. The oldest one is forgotten if there are too many."""
        self._drop_expired()
        while len(self._links) >= _MAX_LINKS:
            del self._links[next(iter(self._links))]
        secret = self._clock.random(32).hex()
        self._links[_hash(secret)] = _Link(read_only, self._clock.now() + LINK_MS)
        return secret

    def open_session(self, link: str) -> tuple[Session, str]:
        """Exchange a link for a session and its secret; Unauthorized if the link is not good."""
        self._drop_expired()
        found = self._links.pop(_hash(link), None)
        if found is None:
            raise Unauthorized("the link was used, or is too old: `gatepost dashboard` makes one")
        if len(self._sessions) >= _MAX_SESSIONS:
            raise Unavailable("too many sessions of the dashboard are open", retry_after=60.0)
        now, secret = self._clock.now(), self._clock.random(32).hex()
        id, form = self._clock.random(4).hex(), self._clock.random(32).hex()
        session = Session(id, found.read_only, form, now + SESSION_MS, now)
        self._sessions[_hash(secret)] = session
        return session, secret

    def find_session(self, secret: str) -> Session | None:
        session = self._sessions.get(_hash(secret))
        if session is None or not self.is_live(session):
            return None
        session.seen_at = self._clock.now()
        return session

    def is_live(self, session: Session) -> bool:
        now = self._clock.now()
        return (
            not session.is_ended and now < session.expires_at and now - session.seen_at < _IDLE_MS
        )

    def end_session(self, session: Session) -> None:
        session.is_ended = True
        self._drop_expired()

    def _drop_expired(self) -> None:
        now = self._clock.now()
        for hashed, link in list(self._links.items()):
            # A clock that was set back must not make a link last longer.
            if not now < link.expires_at <= now + LINK_MS:
                del self._links[hashed]
        for hashed, session in list(self._sessions.items()):
            if not self.is_live(session):
                session.is_ended = True
                del self._sessions[hashed]


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()
