"""What every request to the dashboard passes: its host, its origin, its cookie; and what every
answer carries so that no other page can read, frame or script it.
"""

import hashlib
from typing import Final

from gatepost.errors import Forbidden, Unauthorized
from gatepost.gateway.doors import DoorServices
from gatepost.listening.page_check import check_host, is_own_origin
from gatepost.listening.route_parameters import AnyRequest
from gatepost.web.sessions import DashboardSessions, Session

_POLICY: Final = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self'",
    "connect-src 'self'",
    "form-action 'self'",
    "base-uri 'none'",
    "frame-ancestors 'none'",
)
HEADERS: Final = {
    "content-security-policy": "; ".join(_POLICY),
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
_OTHER_SITES: Final = ("cross-site", "same-site")


class RequestChecks:
    def __init__(self, services: DoorServices, sessions: DashboardSessions) -> None:
        self._services = services
        self._sessions = sessions
        # Cookies know no ports: each gateway of a machine has a cookie of its own name.
        name = hashlib.sha256(services.node_id.encode()).hexdigest()[:12]
        self.cookie = f"gatepost_{name}"

    def check_page(self, request: AnyRequest) -> None:
        """Refuse what another page caused, and plain HTTP from other machines."""
        check_host(request, self._services.settings)
        origin = request.headers.get("origin")
        if origin is not None and not is_own_origin(request, origin):
            raise Forbidden("the dashboard answers its own pages only")
        # Another port of this machine is the same site for a browser, and gets the cookie sent.
        if request.headers.get("sec-fetch-site") in _OTHER_SITES:
            raise Forbidden("the dashboard is opened by its own link, and not from another page")
        self._services.operator.require_tls(request)

    def require_session(self, request: AnyRequest) -> Session:
        """The session of the request's cookie; Unauthorized without a live one."""
        self.check_page(request)
        secret = request.cookies.get(self.cookie)
        session = None if secret is None else self._sessions.find_session(secret)
        if session is None:
            if secret is not None:
                self._services.operator.note_wrong_secret(request)
            raise Unauthorized("log in: `gatepost dashboard` makes a link")
        self._services.operator.identify(request)
        return session

    def check_form(self, request: AnyRequest, session: Session, form_secret: str) -> None:
        """Refuse a form that is not from a page of this session."""
        origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
        if origin is None and site != "same-origin":
            raise Forbidden("a form comes from a page of the dashboard")
        if not session.is_form_secret(form_secret):
            raise Forbidden("this form is not of this session: open the page again")

    def cookie_of(self, request: AnyRequest, secret: str, max_age: int) -> str:
        secure = "; Secure" if request.scope["scheme"] == "https" else ""
        return (
            f"{self.cookie}={secret}; Path=/; HttpOnly; SameSite=Strict; Max-Age={max_age}{secure}"
        )
