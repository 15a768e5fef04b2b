"""Access control on a real journal: every operation is one commit group of the real writer."""

import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import apsw
import pytest

from gatepost.access import (
    AccessPolicy,
    AdmittedNode,
    AgentSessions,
    ExchangeRequester,
    Issuer,
    JournalNodeDirectory,
    MeshSecretStore,
    NodeAdmission,
    NodeAuthenticator,
    NodeRevoker,
    agent_invites,
    node_directory,
    node_invites,
)
from gatepost.access.agent_invites import IssuedAgentInvite
from gatepost.access.agent_sessions import AgentSession, RefreshTokenReuse
from gatepost.access.auth_messages import (
    AgentInviteRequest,
    Challenge,
    ExchangeAnswer,
    ExchangeRequest,
)
from gatepost.access.node_invites import IssuedNodeInvite
from gatepost.access.node_revocation import RevocationResult
from gatepost.errors import GatepostError
from gatepost.events import NodeKey
from gatepost.journal import Database, Tx, Writer, open_memory_journal
from gatepost.testing import ManualClock
from gatepost.wire.agent_tokens import AgentTokens
from gatepost.wire.operations import Tier

T = TypeVar("T")

START = 1_700_000_000_000
SECOND = 1000
HOUR = 3600 * SECOND
DAY = 24 * HOUR


def key(name: str) -> NodeKey:
    """The same key for the same name."""
    return NodeKey(name.encode().ljust(32, b"."))


@lru_cache
def empty_journal() -> bytes:
    """What a journal's file holds when it is new; making it anew takes long."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.db"
        Database.open(path, "off").close()
        return path.read_bytes()


class AccessHarness:
    """`path` makes it outlive `reopen`; without one it lives in memory."""

    def __init__(
        self, path: Path | None = None, policy: AccessPolicy | None = None, tier: Tier = "backbone"
    ) -> None:
        self.clock = ManualClock(START)
        self.policy = policy or AccessPolicy()
        self.issuer = Issuer("vps-jane", key("vps-jane"), self.clock, tier)
        self.path = path
        self.database: Database | None = None
        self.open()

    def open(self) -> None:
        if self.path is not None:
            if not self.path.exists():
                self.path.write_bytes(empty_journal())
            self.database = Database.open(self.path, "off")
            # A crash here ends a process, not a machine; nothing needs to wait for the disk.
            self.database.writer_connection.execute("PRAGMA synchronous = OFF")
        self.connection: apsw.Connection = (
            self.database.writer_connection if self.database else open_memory_journal()
        )
        self.writer = Writer(self.connection, self.clock, lambda outcomes: None)
        # All that the process keeps in memory is made anew, as after a restart.
        self.directory = JournalNodeDirectory()
        self.door = NodeAuthenticator(self.issuer, self.policy, self.directory)
        self.secrets = MeshSecretStore(self.issuer)
        self.revoker = NodeRevoker(self.issuer, self.directory, self.secrets)
        self.agents = AgentSessions(self.clock, self.policy)

    def close(self) -> None:
        if self.database is not None:
            self.database.close()
            self.database = None

    def reopen(self) -> None:
        assert self.path is not None
        self.close()
        self.open()

    def run(self, operation: Callable[[Tx], T]) -> T:
        ((_, value, error),) = self.writer.run_group([(operation, lambda *_: None)])
        if error is not None:
            raise error
        result: T = value
        return result

    def crash_during(self, operation: Callable[[Tx], object]) -> None:
        """Run all of `operation`, then end before the commit."""
        tx = Tx(self.connection, self.clock.now())
        tx.begin()
        try:
            operation(tx)
        finally:
            tx.rollback()

    def admissions(self) -> list[NodeAdmission]:
        return [a for id in self._column("admission") if (a := self._admission(id)) is not None]

    def _admission(self, node_id: str) -> NodeAdmission | None:
        return self.run(lambda tx: node_directory.load_admission(tx, node_id))

    def revoked_nodes(self) -> list[str]:
        return self._column("revocation")

    def _column(self, table: str) -> list[str]:
        rows = self.connection.execute(f"SELECT node_id FROM {table} ORDER BY node_id")
        return [row[0] for row in rows]

    def connected_nodes(self) -> dict[str, str]:
        """Session id → node id of every connected node."""
        return dict(self.connection.execute("SELECT id, node_id FROM node_session ORDER BY id"))

    # -- what tests do most

    def joiner(self, name: str, node_id: str | None = None) -> ExchangeRequester:
        return ExchangeRequester(node_id or name, key(name), self.clock)

    def invite(
        self,
        expected_node_id: str | None = None,
        *,
        tier: Tier = "edge",
        ttl: int = HOUR,
        expected_key: bytes | None = None,
    ) -> IssuedNodeInvite:
        expected = {"expected_node_id": expected_node_id, "expected_key": expected_key}
        return self.run(
            lambda tx: node_invites.issue_node_invite(
                tx,
                self.issuer,
                tier=tier,
                ttl=ttl,
                actor="operator",
                **expected,  # type: ignore[arg-type]
            )
        )

    def challenge(self) -> Challenge:
        return self.door.make_challenge(self.clock.now())

    def exchange(self, request: ExchangeRequest) -> ExchangeAnswer:
        return self.run(lambda tx: self.door.issue_ticket(tx, request))

    def admit(self, ticket: str, node_id: str | None = None) -> AdmittedNode:
        return self.run(lambda tx: self.door.redeem_ticket(tx, ticket, node_id))

    def join(self, name: str, **invited: object) -> AdmittedNode:
        token = self.invite(name, **invited).token  # type: ignore[arg-type]
        return self.admit(self.exchange(self.joiner(name).with_invite(token)).ws_ticket)

    def come_back(self, name: str) -> ExchangeRequest:
        return self.joiner(name).with_challenge(self.challenge(), self.issuer.key.fingerprint)

    def revoke(self, node_id: str, **details: object) -> RevocationResult:
        chosen: dict[str, object] = {"actor": "operator", "last_seq": 7} | details
        return self.run(lambda tx: self.revoker.revoke_node(tx, node_id, **chosen))  # type: ignore[arg-type]

    def agent_invite(
        self, agent: str = "codex", *scopes: str, ttl_secs: int = 3600
    ) -> IssuedAgentInvite:
        request = AgentInviteRequest(agent, scopes or ("ansible.message.read",), ttl_secs)
        return self.run(
            lambda tx: agent_invites.issue_agent_invite(tx, self.clock, request, "operator")
        )

    def agent(self, agent: str = "codex", *scopes: str) -> AgentTokens:
        token = self.agent_invite(agent, *scopes).token
        return self.run(lambda tx: self.agents.exchange_invite(tx, token))

    def refresh(self, token: str, attempt: str | None = None) -> AgentTokens | RefreshTokenReuse:
        return self.run(lambda tx: self.agents.refresh_tokens(tx, token, attempt))

    def authenticate(self, token: str) -> AgentSession:
        return self.run(lambda tx: self.agents.authenticate_token(tx, token))


class Refused:
    """`with refused("invalid_token"): ...`"""

    def __init__(self, code: str) -> None:
        self._code = code
        self._raises = pytest.raises(GatepostError)

    def __enter__(self) -> None:
        self._found = self._raises.__enter__()

    def __exit__(self, *details: object) -> bool:
        handled = self._raises.__exit__(*details)  # type: ignore[arg-type]
        if handled:
            assert self._found.value.code == self._code
        return bool(handled)


refused = Refused
