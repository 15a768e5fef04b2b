"""Finds the gateway: its address and its token."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from gatepost.config import Settings, default_settings_path
from gatepost.errors import ConfigError, Unauthorized, Unavailable

_SCHEMES = ("http://", "https://")


class Target(msgspec.Struct, frozen=True):
    """A gateway's address and its token; the token is never printed."""

    url: str
    token: str

    def __repr__(self) -> str:
        return f"Target({self.url!r})"


LocateGateway = Callable[[], Target]


class _EndpointFile(msgspec.Struct):
    url: str


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
    if url is not None:
        _check_url(url)

    def locate() -> Target:
        home = folder or _configured_state_dir(env)
        address = _read_announced_url(home) if url is None else url
        return Target(address.rstrip("/"), token or _read_token(home, folder is None, env))

    return locate


def _configured_state_dir(env: Mapping[str, str]) -> Path:
    file = default_settings_path(env)
    return Settings.load(file if file.exists() else None, env).node.state_dir


def _check_url(url: str) -> None:
    if not url.startswith(_SCHEMES):
        raise ConfigError(f"{url!r} is not a gateway's address; write http://HOST:PORT")


def _read_announced_url(home: Path) -> str:
    file = home / "endpoint.json"
    try:
        return msgspec.json.decode(file.read_bytes(), type=_EndpointFile).url
    except FileNotFoundError:
        raise Unavailable(
            f"no gateway runs here ({file} is missing); start one with `gatepost up`"
        ) from None
    except OSError as error:
        raise Unavailable(f"{file} cannot be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"{file} is damaged ({error}); restart the gateway") from None


def _read_token(home: Path, use_env: bool, env: Mapping[str, str]) -> str:
    named = env.get("GATEPOST_TOKEN_FILE") if use_env else None
    file = Path(named).expanduser() if named else home / "token"
    try:
        token = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise Unauthorized(
            f"the gateway's token cannot be read from {file}: {why};"
            " name the file in GATEPOST_TOKEN_FILE"
        ) from None
    if not token:
        raise Unauthorized(f"{file} is empty; it should hold the gateway's token")
    return token
