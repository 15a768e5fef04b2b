"""The files by which a running gateway is found: its endpoint and its token."""

import ssl
from collections.abc import Callable
from pathlib import Path

import msgspec

from gatepost.errors import ConfigError, Unauthorized, Unavailable

ENDPOINT_FILE_NAME = "endpoint.json"
TOKEN_FILE_NAME = "token"
# Access and context tokens.
_SESSION_TOKENS = ("gps1.", "gpc1.")


class GatewayEndpoint(msgspec.Struct):
    """The addresses of a running gateway; clients on this machine read them."""

    url: str
    socket: str | None
    pid: int
    node_id: str
    # The certificate clients must trust, if the gateway uses TLS.
    tls_cert: str | None = None


class Target(msgspec.Struct, frozen=True):
    """A gateway's address and its token; the token is never printed.

    `tls` verifies the gateway's certificate; None leaves that to the system's authorities.
    `expire_token` is called when the gateway says that the token has expired. `agent` is the agent
    of the session whose token this is.
    """

    url: str
    token: str
    tls: ssl.SSLContext | None = None
    expire_token: Callable[[], None] | None = None
    agent: str | None = None

    @property
    def is_session(self) -> bool:
        """Whether the token is one of an external agent's session, and not the local token."""
        return self.token.startswith(_SESSION_TOKENS)

    def __repr__(self) -> str:
        return f"Target({self.url!r})"


# May block for a while: a session is refreshed when its token expires soon.
LocateGateway = Callable[[], Target]


def read_endpoint(state_dir: Path) -> GatewayEndpoint:
    """The endpoint that the gateway of this state directory announced."""
    file = state_dir / ENDPOINT_FILE_NAME
    try:
        return msgspec.json.decode(file.read_bytes(), type=GatewayEndpoint)
    except FileNotFoundError:
        raise Unavailable(
            f"no gateway runs here ({file} is missing); start one with `gatepost up`"
        ) from None
    except OSError as error:
        raise Unavailable(f"{file} cannot be read: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{file} is damaged ({error}); restart the gateway") from None


def read_token(file: Path, advice: str) -> str:
    """The token in a file. Errors never quote the file's content; they end with `advice`."""
    try:
        token = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise Unauthorized(
            f"the gateway's token cannot be read from {file} ({why}): {advice}"
        ) from None
    if not token:
        raise Unauthorized(f"{file} holds no token (it is empty): {advice}")
    if not all(char.isalnum() or char in "-._~+/=" for char in token):
        raise Unauthorized(f"{file} holds no token: {advice}")
    return token
