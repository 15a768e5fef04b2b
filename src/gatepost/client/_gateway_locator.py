"""Finds the gateway: its address and its token."""

import os
import ssl
from collections.abc import Mapping
from pathlib import Path

from gatepost.config import load_settings
from gatepost.connect.agent_session_file import open_token_file
from gatepost.connect.gateway_contexts import GatewayContexts
from gatepost.connect.gateway_endpoint import TOKEN_FILE_NAME, LocateGateway, Target, read_endpoint
from gatepost.errors import ConfigError
from gatepost.tls import local_context

_SCHEMES = ("http://", "https://")
_TOKEN_ADVICE = "name the file in GATEPOST_TOKEN_FILE"


def locator(
    state_dir: Path | str | None = None,
    url: str | None = None,
    token: str | None = None,
    env: Mapping[str, str] | None = None,
    *,
    token_file: Path | str | None = None,
    context: str | None = None,
) -> LocateGateway:
    """Returns a function that finds the gateway anew at each call: its port may change on restart.

    Arguments win over the environment: GATEPOST_CONTEXT, which names a context of `gatepost context
    add`, or GATEPOST_URL and GATEPOST_TOKEN_FILE. Those win over the state directory (GATEPOST_HOME
    or ~/.gatepost), where a running gateway writes its address and token. A token file may also
    hold the invite or the session of an external agent, which is kept fresh there.
    """
    env = os.environ if env is None else env
    folder = None if state_dir is None else Path(state_dir).expanduser()
    is_elsewhere = any(each is not None for each in (state_dir, url, token, token_file))
    if context is not None and is_elsewhere:
        raise ConfigError("a context names the gateway and its token: give nothing else")
    if not is_elsewhere:
        context = context or env.get("GATEPOST_CONTEXT") or None
    if context is not None:
        return GatewayContexts(env).find(context).open_target
    if url is None and folder is None:
        url = env.get("GATEPOST_URL") or None
    if url is not None and not url.startswith(_SCHEMES):
        raise ConfigError(f"{url!r} is not a gateway's address; write http://HOST:PORT")

    def locate() -> Target:
        home = folder or load_settings(env).node.state_dir
        address, tls = _find_address(home, url)
        if token:
            return Target(address, token, tls)
        named = token_file or (env.get("GATEPOST_TOKEN_FILE") if folder is None else None)
        file = Path(named).expanduser() if named else home / TOKEN_FILE_NAME
        return open_token_file(file, address, tls, _TOKEN_ADVICE)

    return locate


def _find_address(home: Path, url: str | None) -> tuple[str, ssl.SSLContext | None]:
    """The gateway's address; one on this machine is known by its certificate file."""
    if url is not None:
        return url.rstrip("/"), None
    endpoint = read_endpoint(home)
    tls = None if endpoint.tls_cert is None else local_context(endpoint.tls_cert)
    return endpoint.url, tls
