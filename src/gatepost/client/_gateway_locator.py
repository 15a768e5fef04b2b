"""Finds the gateway: its address and its token."""

import os
import ssl
from collections.abc import Mapping
from pathlib import Path

from gatepost.config import load_settings
from gatepost.errors import ConfigError
from gatepost.gateway_endpoint import (
    TOKEN_FILE_NAME,
    LocateGateway,
    Target,
    read_endpoint,
    read_token,
)
from gatepost.session_file import SessionFile, holds_session
from gatepost.tls import local_context

_SCHEMES = ("http://", "https://")
_TOKEN_ADVICE = "name the file in GATEPOST_TOKEN_FILE"


def locator(
    state_dir: Path | str | None = None,
    url: str | None = None,
    token: str | None = None,
    env: Mapping[str, str] | None = None,
) -> LocateGateway:
    """Returns a function that finds the gateway anew at each call: its port may change on restart.

    Arguments win over GATEPOST_URL and GATEPOST_TOKEN_FILE. Those win over the state directory
    (GATEPOST_HOME or ~/.gatepost), where a running gateway writes its address and token. A token
    file may also hold the invite or the session of an external agent, which is kept fresh there.
    """
    env = os.environ if env is None else env
    folder = None if state_dir is None else Path(state_dir).expanduser()
    if url is None and folder is None:
        url = env.get("GATEPOST_URL") or None
    if url is not None and not url.startswith(_SCHEMES):
        raise ConfigError(f"{url!r} is not a gateway's address; write http://HOST:PORT")

    def locate() -> Target:
        home = folder or load_settings(env).node.state_dir
        address, tls = _find_address(home, url)
        if token:
            return Target(address, token, tls)
        named = env.get("GATEPOST_TOKEN_FILE") if folder is None else None
        file = Path(named).expanduser() if named else home / TOKEN_FILE_NAME
        if holds_session(file):
            return SessionFile(file, address, tls).current_target()
        return Target(address, read_token(file, _TOKEN_ADVICE), tls)

    return locate


def _find_address(home: Path, url: str | None) -> tuple[str, ssl.SSLContext | None]:
    """The gateway's address; one on this machine is known by its certificate file."""
    if url is not None:
        return url.rstrip("/"), None
    endpoint = read_endpoint(home)
    tls = None if endpoint.tls_cert is None else local_context(endpoint.tls_cert)
    return endpoint.url, tls
