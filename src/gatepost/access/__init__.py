"""Who may enter: invites, tickets and proofs for nodes; sessions and scopes for external agents.

Everything here decides and remembers, over a transaction and a moment passed in. A refusal is
raised and undone with its transaction; whatever must be kept beside a refusal is returned.
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
