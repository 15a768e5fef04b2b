"""Access control: invites, tickets and proofs for nodes; sessions and scopes for external agents.

All functions work on a transaction and a time passed in. A refusal is raised, and its transaction
is rolled back. State that must be committed together with a refusal is returned instead of raised.
"""

from gatepost.access.agent_sessions import (
    AgentSession,
    AgentSessionInfo,
    AgentSessions,
    RefreshTokenReuse,
)
from gatepost.access.exchange_request import ExchangeRequester, check_exchange_answer
from gatepost.access.issuer import Issuer
from gatepost.access.mesh_secrets import MeshSecrets, MeshSecretStore
from gatepost.access.node_authentication import AdmittedNode, NodeAuthenticator
from gatepost.access.node_directory import (
    CombinedNodeDirectory,
    JournalNodeDirectory,
    KnownNode,
    NodeAdmission,
    NodeDirectory,
)
from gatepost.access.node_revocation import NodeRevocation, NodeRevoker, RevocationResult
from gatepost.access.policy import AccessPolicy
from gatepost.access.rate_limit import SourceRateLimiter, TokenBucket, rate_limit_source
from gatepost.access.scopes import Scope, authorize_op, authorize_operation_name, require_scope

__all__ = [
    "AccessPolicy",
    "AdmittedNode",
    "AgentSession",
    "AgentSessionInfo",
    "AgentSessions",
    "CombinedNodeDirectory",
    "ExchangeRequester",
    "Issuer",
    "JournalNodeDirectory",
    "KnownNode",
    "MeshSecretStore",
    "MeshSecrets",
    "NodeAdmission",
    "NodeAuthenticator",
    "NodeDirectory",
    "NodeRevocation",
    "NodeRevoker",
    "RefreshTokenReuse",
    "RevocationResult",
    "Scope",
    "SourceRateLimiter",
    "TokenBucket",
    "authorize_op",
    "authorize_operation_name",
    "check_exchange_answer",
    "rate_limit_source",
    "require_scope",
]
