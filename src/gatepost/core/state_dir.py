"""The state directory: a gateway's journal, key, token, blobs, socket and endpoint file."""

import base64
import contextlib
import hashlib
from pathlib import Path

import msgspec

from gatepost.clock import Clock
from gatepost.connect.gateway_endpoint import ENDPOINT_FILE_NAME, TOKEN_FILE_NAME, GatewayEndpoint
from gatepost.errors import ConfigError
from gatepost.events import NodeKey
from gatepost.files import write_file_atomically

_KEY_BYTES = 32
_KEY_ADVICE = (
    "Put the key back, or restore it with the journal from a backup (`gatepost restore FILE`)."
    " Without either, move the state directory away, and join under a new node.id."
)


class StateDir:
    """Paths of the state directory. Its files are readable by their owner only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal = path / "journal.db"
        self.blobs = path / "blobs"
        self.drop = path / "drop"
        self.socket = path / "gateway.sock"
        self.session_sockets = path / "hub"
        self.sessions = path / "sessions"
        self.secrets = path / "secrets"
        self.token = path / TOKEN_FILE_NAME
        self.key = path / "node.key"
        self.tls_key = path / "tls.key"
        self.tls_cert = path / "tls.crt"
        self.endpoint = path / ENDPOINT_FILE_NAME

    def session_socket(self, name: str) -> Path:
        """The socket of a session, in a folder that only this session sees.

        Its path is short, because the system permits only 107 bytes.
        """
        digest = hashlib.blake2b(name.encode(), digest_size=5).digest()
        return self.session_sockets / base64.b32encode(digest).decode().lower() / "s"

    def create_folder(self) -> None:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = self.path.stat().st_mode & 0o777
        if mode & 0o077:
            raise ConfigError(
                f"{self.path} can be read by others (mode {mode:o}); run `chmod 700 {self.path}`"
            )

    def journal_size(self) -> int:
        """Bytes of the journal on disk, with its write-ahead log."""
        files = (self.journal, self.journal.with_name(f"{self.journal.name}-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def load_node_key(self, clock: Clock) -> NodeKey:
        """Return the node key; create it if it is missing. Check `require_node_key` before."""
        content = read_or_create(self.key, clock.random(_KEY_BYTES))
        if len(content) != _KEY_BYTES:
            raise ConfigError(
                f"{self.key} is damaged: a key has {_KEY_BYTES} bytes, not {len(content)}."
                f" {_KEY_ADVICE}"
            )
        return NodeKey(content)

    def require_node_key(self) -> None:
        """Raise ConfigError if the key of an existing journal is missing."""
        if not self.key.exists():
            raise ConfigError(
                f"{self.key} is missing, and the journal beside it belongs to that key."
                f" A new key would make this another node. {_KEY_ADVICE}"
            )

    def load_local_token(self, clock: Clock) -> str:
        """Return the secret of the local API; create it if it is missing."""
        token = read_or_create(self.token, clock.random(32).hex().encode()).decode().strip()
        if len(token) < 32:
            raise ConfigError(f"{self.token} holds no token; remove it to have a new one made")
        return token

    def write_endpoint(self, endpoint: GatewayEndpoint) -> None:
        write_file_atomically(self.endpoint, msgspec.json.encode(endpoint))

    def remove_endpoint(self) -> None:
        self.endpoint.unlink(missing_ok=True)


def read_or_create(path: Path, content: bytes) -> bytes:
    with contextlib.suppress(FileNotFoundError):
        return path.read_bytes()
    write_file_atomically(path, content)
    return content
