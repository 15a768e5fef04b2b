"""The operator's requests: the local token, TLS from other machines, and a limit on guesses."""

from gatepost.access import SourceRateLimiter
from gatepost.clock import Clock
from gatepost.config import Settings
from gatepost.delivery.abuse import AbuseKind, AbuseLog
from gatepost.errors import Forbidden, GatepostError, RateLimited, Unauthorized
from gatepost.listening.connection_guard import AnyConnection, is_exposed
from gatepost.listening.connection_pool import (
    OPERATOR,
    connection_source,
    identify_connection,
    name_offender,
)
from gatepost.listening.local_auth import (
    LocalTokenAuth,
    is_session_token,
    parse_bearer_token,
)


class GuessLimit:
    """Counts the wrong tokens of each address. Valid tokens pass, whoever guesses beside them."""

    def __init__(self, per_minute: int, abuse: AbuseLog, clock: Clock) -> None:
        self._limiter = SourceRateLimiter(per_minute / 60, per_minute, clock)
        self._abuse = abuse

    def note_wrong_token(self, connection: AnyConnection) -> None:
        """Raise RateLimited, in place of the refusal, if the address has guessed too often."""
        self.note_guess(connection_source(connection))

    def note_guess(self, source: str) -> None:
        try:
            self._limiter.take_token(source)
        except RateLimited as limited:
            self._abuse.report_abuse(
                name_offender(source), AbuseKind.TOKEN_GUESSING, "it showed too many wrong tokens"
            )
            limited.message = "too many wrong tokens from this address; wait"
            raise


class OperatorAccess:
    def __init__(self, local_auth: LocalTokenAuth, guesses: GuessLimit, settings: Settings) -> None:
        self._local_auth = local_auth
        self.guesses = guesses
        self._allow_plain = settings.listen.allow_plain

    @property
    def own_calls(self) -> str:
        """The token by which a door of this process calls the operator's API."""
        assert self._local_auth.own_calls is not None, "this process has no doors"
        return self._local_auth.own_calls

    def require_operator(self, connection: AnyConnection) -> None:
        """Raise an error unless the request carries the local token, over a safe connection."""
        # Before the token is compared: the answer must not tell whether it was right.
        self.require_tls(connection)
        if not self._has_token(connection):
            if parse_bearer_token(connection.headers.get("authorization")) is not None:
                self.guesses.note_wrong_token(connection)
            raise _unauthorized()
        identify_connection(connection, OPERATOR)

    def screen_handshake(self, authorization: str | None, source: str) -> GatepostError | None:
        """Return the refusal of a handshake for the local API that cannot succeed.

        Strangers may begin many, and a WebSocket costs ten times as much as this look at its token.
        """
        if is_session_token(authorization) or self._local_auth.is_token(authorization):
            return None
        if parse_bearer_token(authorization) is not None:
            try:
                self.guesses.note_guess(source)
            except RateLimited as limited:
                return limited
        return _unauthorized()

    def identify_operator(self, connection: AnyConnection) -> bool:
        """Note the operator as the holder of a connection that shows the local token.

        False if the request shows another token, or none.
        """
        self.require_tls(connection)
        found = self._has_token(connection)
        if found:
            identify_connection(connection, OPERATOR)
        return found

    def _has_token(self, connection: AnyConnection) -> bool:
        return self._local_auth.is_token(connection.headers.get("authorization"))

    def require_tls(self, connection: AnyConnection) -> None:
        """Refuse plain HTTP from other machines."""
        if is_exposed(connection) and not self._allow_plain:
            raise Forbidden(
                "use TLS: plain HTTP from other machines is refused, and the token may have been"
                " read on the way; see listen.tls_cert, and listen.allow_plain"
            )


def _unauthorized() -> Unauthorized:
    return Unauthorized("send `Authorization: Bearer` with the token in the state directory")
