"""Access control: invites, tickets and proofs for nodes; sessions and scopes for external agents.

All functions work on a transaction and a time passed in. A refusal is raised, and its transaction
is rolled back. State that must be committed together with a refusal is returned instead of raised.
"""

from gatepost.access.agent_sessions import AgentSession, AgentSessions, Reused, SessionInfo
from gatepost.access.door import Admitted, Door
from gatepost.access.issuer import Issuer
from gatepost.access.joining import Joiner, check_answer
from gatepost.access.limits import RateLimiter, source_of
from gatepost.access.mesh_secrets import MeshSecrets, SecretStore
from gatepost.access.nodes import Admission, Directories, Directory, JournalDirectory, Standing
from gatepost.access.policy import Policy
from gatepost.access.revocation import Revocation, Revoker, ShutOut
from gatepost.access.scopes import Scope, authorize, authorize_name, require

__all__ = [
    "Admission",
    "Admitted",
    "AgentSession",
    "AgentSessions",
    "Directories",
    "Directory",
    "Door",
    "Issuer",
    "Joiner",
    "JournalDirectory",
    "MeshSecrets",
    "Policy",
    "RateLimiter",
    "Reused",
    "Revocation",
    "Revoker",
    "Scope",
    "SecretStore",
    "SessionInfo",
    "ShutOut",
    "Standing",
    "authorize",
    "authorize_name",
    "check_answer",
    "require",
    "source_of",
]
