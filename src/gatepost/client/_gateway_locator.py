"""Finds the gateway: its address and its token."""

import os
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
    (GATEPOST_HOME or ~/.gatepost), where a running gateway writes its address and token.
    """
    env = os.environ if env is None else env
    folder = None if state_dir is None else Path(state_dir).expanduser()
    if url is None and folder is None:
        url = env.get("GATEPOST_URL") or None
    if url is not None and not url.startswith(_SCHEMES):
        raise ConfigError(f"{url!r} is not a gateway's address; write http://HOST:PORT")

    def locate() -> Target:
        home = folder or load_settings(env).node.state_dir
        address = read_endpoint(home).url if url is None else url
        named = env.get("GATEPOST_TOKEN_FILE") if folder is None else None
        file = Path(named).expanduser() if named else home / TOKEN_FILE_NAME
        return Target(address.rstrip("/"), token or read_token(file, _TOKEN_ADVICE))

    return locate
