"""Contexts: gateways that commands and programs name, each with the file of its token.

The file of contexts is in the default state directory, readable by its owner alone. It names token
files and holds no token. A token file that others can read is refused.
"""

import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from gatepost.clock import Clock
from gatepost.config import default_settings_path
from gatepost.connect.agent_session_file import open_token_file
from gatepost.connect.gateway_endpoint import Target
from gatepost.errors import ConfigError, Unauthorized, Unavailable
from gatepost.files import hold_file_lock, write_file_atomically
from gatepost.tls import pinned_context

CONTEXTS_FILE_NAME = "contexts.json"
_LOCK_SECS = 10.0
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MAX_CONTEXTS = 1000


class GatewayContext(Struct, frozen=True, omit_defaults=True):
    """A gateway's address, the file of its token or session, and perhaps the pin of its key."""

    url: str
    token_file: Path
    tls_pin: str | None = None

    def open_target(self, clock: Clock | None = None) -> Target:
        """The gateway with the token to use now. A session that ends soon is renewed."""
        require_private(self.token_file)
        tls = None if self.tls_pin is None else pinned_context(self.tls_pin)
        advice = "name another file with `gatepost context add --force`"
        return open_token_file(self.token_file, self.url, tls, advice, clock)


class _StoredContexts(Struct):
    current: str | None = None
    contexts: dict[str, GatewayContext] = msgspec.field(default_factory=dict)


class GatewayContexts:
    """The contexts of one user."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._home = default_settings_path(env).parent
        self._file = self._home / CONTEXTS_FILE_NAME

    @property
    def token_folder(self) -> Path:
        """Where tokens are kept that came from standard input."""
        return self._home / "contexts"

    def create_token_folder(self) -> Path:
        # `parents` would create the state directory with permissions that a gateway refuses.
        self._create_home()
        self.token_folder.mkdir(mode=0o700, exist_ok=True)
        return self.token_folder

    def _create_home(self) -> None:
        self._home.mkdir(mode=0o700, parents=True, exist_ok=True)

    def load_all(self) -> dict[str, GatewayContext]:
        return self._load().contexts

    def current(self) -> str | None:
        """The context that commands use if they name none."""
        return self._load().current

    def find(self, name: str) -> GatewayContext:
        found = self._load().contexts.get(name)
        if found is None:
            raise _unknown_context(name)
        return found

    def add(self, name: str, context: GatewayContext) -> None:
        """Add a context, or replace it."""
        check_context_name(name)
        with self._change() as stored:
            if len(stored.contexts) >= _MAX_CONTEXTS:
                raise ConfigError(f"there are {_MAX_CONTEXTS} contexts: remove one first")
            stored.contexts[name] = context

    def use(self, name: str | None) -> None:
        """Make a context the current one; None for none."""
        with self._change() as stored:
            if name is not None and name not in stored.contexts:
                raise _unknown_context(name)
            stored.current = name

    def remove(self, name: str) -> GatewayContext:
        with self._change() as stored:
            if name not in stored.contexts:
                raise _unknown_context(name)
            if stored.current == name:
                stored.current = None
            return stored.contexts.pop(name)

    def _load(self) -> _StoredContexts:
        try:
            content = self._file.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return _StoredContexts()
        except OSError as error:
            raise ConfigError(f"{self._file} cannot be read: {error.strerror}") from None
        try:
            return msgspec.json.decode(content, type=_StoredContexts, dec_hook=_read_path)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{self._file} is damaged ({error}): remove it") from None

    @contextmanager
    def _change(self) -> Iterator[_StoredContexts]:
        self._create_home()
        busy = Unavailable(f"another process is changing {self._file}")
        with hold_file_lock(self._file.with_name(f".{self._file.name}.lock"), _LOCK_SECS, busy):
            stored = self._load()
            yield stored
            write_file_atomically(self._file, msgspec.json.encode(stored, enc_hook=str))


def check_context_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is not a context's name: use letters, digits and ._-, at most 64"
        )


def require_private(file: Path) -> None:
    """Raise Unauthorized if others on this machine can read or change a token file."""
    try:
        mode = file.stat().st_mode
    except OSError:
        # The reader of the file reports the reason.
        return
    if mode & _OTHERS:
        raise Unauthorized(f"others on this machine can use {file}: run `chmod 600 {file}`")


def _unknown_context(name: str) -> ConfigError:
    return ConfigError(f"there is no context {name!r}: see `gatepost context list`")


def _read_path(kind: type, value: object) -> object:
    return kind(value)
