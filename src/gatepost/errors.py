"""Every error Gatepost raises on purpose.

GatepostError
├── InvalidRequest            400 invalid_request
│   ├── InvalidId             400 invalid_id
│   ├── ReservedName          400 reserved_name
│   ├── InvalidTargets        400 invalid_targets
│   ├── ExpiresTooSoon        400 expires_too_soon
│   ├── NoRoute               400 no_route
│   ├── MissingRouteFields    400 missing_route_fields
│   ├── InvalidPolicy         400 invalid_policy
│   ├── InvalidContract       400 invalid_contract
│   ├── ContractMismatch      400 contract_mismatch
│   ├── ProofRejected         400 proof_rejected
│   └── MalformedEvent        400 malformed_event
├── Unauthorized              401 unauthorized
│   ├── InvalidToken          401 invalid_token
│   ├── ExpiredToken          401 expired_token
│   ├── TokenReused           401 token_reused
│   ├── InvalidTicket         401 invalid_ticket
│   ├── ExpiredTicket         401 expired_ticket
│   ├── ProofRequired         401 proof_required
│   └── InvalidProof          401 invalid_proof
├── Forbidden                 403 forbidden
│   ├── NodeMismatch          403 node_mismatch
│   ├── Revoked               403 revoked
│   ├── InsufficientScope     403 insufficient_scope
│   ├── PolicyDenied          403 policy_denied
│   ├── ForeignSkill          403 foreign_skill
│   └── RoomViolation         403 room_violation
├── NotFound                  404 not_found
│   ├── UnknownNode           404 unknown_node
│   ├── UnknownInvite         404 unknown_invite
│   ├── UnknownAgent          404 unknown_agent
│   ├── UnknownMessage        404 unknown_message
│   ├── UnknownTask           404 unknown_task
│   ├── UnknownCapability     404 unknown_capability
│   └── UnknownBlob           404 unknown_blob
├── Conflict                  409 conflict
│   ├── IdempotencyConflict   409 idempotency_conflict
│   ├── WrongState            409 wrong_state
│   ├── CapabilityUnavailable 409 capability_unavailable
│   ├── StaleLeaseHandle      409 stale_receipt
│   ├── OutOfOrder            409 out_of_order
│   ├── TokenAlreadyUsed      409 token_already_used
│   ├── TicketAlreadyUsed     409 ticket_already_used
│   ├── ReplayDetected        409 replay_detected
│   └── UnsafeReplay          409 unsafe_replay
├── PayloadTooLarge           413 payload_too_large
├── MailboxFull               429 mailbox_full
├── TaskQueueFull             429 task_queue_full
├── ContractStoreFull         429 contract_store_full
├── RoomFull                  429 room_full
├── TooManyAgents             429 too_many_agents
├── TooManyMailboxes          429 too_many_mailboxes
├── RateLimited               429 rate_limited
├── InternalError             500 internal
├── TurnFailed                502 turn_failed
├── TaskFailed                502 task_failed
├── LaunchFailed              502 launch_failed
├── Unavailable               503 unavailable
│   ├── ExtraMissing          503 extra_missing
│   ├── StorageFailed         503 storage_failed
│   ├── ContractUnchecked     503 contract_unchecked
│   └── WrongHost             503 wrong_host
├── DeadlineExceeded          504 deadline_exceeded
├── ConfigError               a settings file or variable that cannot be used
├── TransportUnavailable      a mesh transport without its tools, rights or address
├── BenchFailed               a benchmark whose messages were lost, duplicated or reordered
├── LinkError                 a peer that broke the rules of a link
├── EncryptionError           an encrypted payload that cannot be decrypted
├── ChainError                a hash chain or signed head that does not verify
├── ArchiveError              an archive that cannot be read or continued
│   └── ArchiveTooNew         written by a newer Gatepost
├── PipelineError             a pipeline job that cannot continue
│   ├── PipelineMissing       a dependency is not installed: PySpark or Java
│   ├── TablesBusy            another job works on the same tables
│   └── TablesFull            no space is left for them
└── JournalError              a journal that cannot be opened
    ├── JournalLocked         another gateway holds it
    ├── JournalTooNew         written by a newer Gatepost
    ├── JournalCorrupt        SQLite's own check failed
    └── BackupError           a backup that cannot be written or restored

A message names the problem and the next step, and never carries a secret.
"""

from typing import ClassVar


class GatepostError(Exception):
    """Base of all errors. `code` and `status` travel on the wire; the message is for a person."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after


class InvalidRequest(GatepostError):
    code, status = "invalid_request", 400


class InvalidId(InvalidRequest):
    code = "invalid_id"


class ReservedName(InvalidRequest):
    """A name that stands for a gateway, its hub or its operator."""

    code = "reserved_name"


class InvalidTargets(InvalidRequest):
    code = "invalid_targets"


class ExpiresTooSoon(InvalidRequest):
    code = "expires_too_soon"


class NoRoute(InvalidRequest):
    code = "no_route"


class MissingRouteFields(InvalidRequest):
    code = "missing_route_fields"


class InvalidPolicy(InvalidRequest):
    """A policy file that cannot be used: all of it is refused."""

    code = "invalid_policy"


class InvalidContract(InvalidRequest):
    """A contract whose schemas cannot be read, compiled or checked within the limits."""

    code = "invalid_contract"


class ContractMismatch(InvalidRequest):
    """An input or result that does not fit the contract of its capability."""

    code = "contract_mismatch"


class ProofRejected(InvalidRequest):
    code = "proof_rejected"


class MalformedEvent(InvalidRequest):
    code = "malformed_event"


class Unauthorized(GatepostError):
    code, status = "unauthorized", 401


class InvalidToken(Unauthorized):
    code = "invalid_token"


class ExpiredToken(Unauthorized):
    code = "expired_token"


class TokenReused(Unauthorized):
    code = "token_reused"


class InvalidTicket(Unauthorized):
    code = "invalid_ticket"


class ExpiredTicket(Unauthorized):
    code = "expired_ticket"


class ProofRequired(Unauthorized):
    code = "proof_required"


class InvalidProof(Unauthorized):
    code = "invalid_proof"


class Forbidden(GatepostError):
    code, status = "forbidden", 403


class NodeMismatch(Forbidden):
    code = "node_mismatch"


class Revoked(Forbidden):
    code = "revoked"


class InsufficientScope(Forbidden):
    code = "insufficient_scope"


class PolicyDenied(Forbidden):
    """No policy permits this, or one forbids it."""

    code = "policy_denied"


class ForeignSkill(Forbidden):
    """A delegation skill that does not come from the gateway of its capability's owner."""

    code = "foreign_skill"


class RoomViolation(Forbidden):
    """A peer's update breaks a rule of the room: all of it is dropped and the connection ends."""

    code = "room_violation"

    def __init__(self, message: str, *, rule: str = "unknown") -> None:
        super().__init__(message)
        self.rule = rule


class NotFound(GatepostError):
    code, status = "not_found", 404


class UnknownNode(NotFound):
    code = "unknown_node"


class UnknownInvite(NotFound):
    code = "unknown_invite"


class UnknownAgent(NotFound):
    code = "unknown_agent"


class UnknownMessage(NotFound):
    code = "unknown_message"


class UnknownTask(NotFound):
    code = "unknown_task"


class UnknownCapability(NotFound):
    code = "unknown_capability"


class UnknownBlob(NotFound):
    code = "unknown_blob"


class Conflict(GatepostError):
    code, status = "conflict", 409


class IdempotencyConflict(Conflict):
    code = "idempotency_conflict"


class WrongState(Conflict):
    code = "wrong_state"


class CapabilityUnavailable(Conflict):
    code = "capability_unavailable"


class StaleLeaseHandle(Conflict):
    code = "stale_receipt"


class OutOfOrder(Conflict):
    code = "out_of_order"


class TokenAlreadyUsed(Conflict):
    code = "token_already_used"


class TicketAlreadyUsed(Conflict):
    code = "ticket_already_used"


class ReplayDetected(Conflict):
    code = "replay_detected"


class UnsafeReplay(Conflict):
    code = "unsafe_replay"


class PayloadTooLarge(GatepostError):
    code, status = "payload_too_large", 413


class MailboxFull(GatepostError):
    code, status = "mailbox_full", 429


class TaskQueueFull(GatepostError):
    code, status = "task_queue_full", 429


class ContractStoreFull(GatepostError):
    """A node has brought as many contracts as a gateway keeps of one."""

    code, status = "contract_store_full", 429


class RoomFull(GatepostError):
    code, status = "room_full", 429


class TooManyAgents(GatepostError):
    code, status = "too_many_agents", 429


class TooManyMailboxes(GatepostError):
    code, status = "too_many_mailboxes", 429


class RateLimited(GatepostError):
    code, status = "rate_limited", 429


class InternalError(GatepostError):
    code, status = "internal", 500


class TurnFailed(GatepostError):
    """The receiver's turn did not succeed. `outcome`: dead_letter or expired, if it is known."""

    code, status = "turn_failed", 502

    def __init__(
        self, message: str, *, retry_after: float | None = None, outcome: str | None = None
    ) -> None:
        super().__init__(message, retry_after=retry_after)
        self.outcome = outcome


class TaskFailed(GatepostError):
    """The task that was waited for did not complete. `failure` is its code, such as cancelled."""

    code, status = "task_failed", 502

    def __init__(
        self, message: str, *, retry_after: float | None = None, failure: str = "failed"
    ) -> None:
        super().__init__(message, retry_after=retry_after)
        self.failure = failure


class LaunchFailed(GatepostError):
    """A session could not be started."""

    code, status = "launch_failed", 502


class Unavailable(GatepostError):
    code, status = "unavailable", 503


class ExtraMissing(Unavailable):
    """A part of Gatepost that is not installed is needed for this."""

    code = "extra_missing"


class StorageFailed(Unavailable):
    code = "storage_failed"


class ContractUnchecked(Unavailable):
    """Content has not been checked against its contract yet."""

    code = "contract_unchecked"


class WrongHost(Unavailable):
    """No gateway answers at an address, or it must not be dialled."""

    code = "wrong_host"


class DeadlineExceeded(GatepostError):
    code, status = "deadline_exceeded", 504


class ConfigError(GatepostError):
    code = "config_error"


class TransportUnavailable(GatepostError):
    code = "transport_unavailable"


class BenchFailed(GatepostError):
    code = "bench_failed"


class LinkError(GatepostError):
    code = "link_error"


class EncryptionError(GatepostError):
    code = "encryption_error"


class ChainError(GatepostError):
    code = "chain_error"


class ArchiveError(GatepostError):
    code = "archive_error"


class ArchiveTooNew(ArchiveError):
    code = "archive_too_new"


class PipelineError(GatepostError):
    code = "pipeline_error"


class PipelineMissing(PipelineError):
    code = "pipeline_missing"


class TablesBusy(PipelineError):
    code = "tables_busy"


class TablesFull(PipelineError):
    code = "tables_full"


class JournalError(GatepostError):
    code = "journal_error"


class JournalLocked(JournalError):
    code = "journal_locked"


class JournalTooNew(JournalError):
    code = "journal_too_new"


class JournalCorrupt(JournalError):
    code = "journal_corrupt"


class BackupError(JournalError):
    code = "backup_error"


def _classes_by_code(cls: type[GatepostError]) -> dict[str, type[GatepostError]]:
    found = {cls.code: cls}
    for sub in cls.__subclasses__():
        found |= _classes_by_code(sub)
    return found


ERRORS_BY_CODE: dict[str, type[GatepostError]] = _classes_by_code(GatepostError)


def error_from_code(code: str, message: str) -> GatepostError:
    """Return the exception for a wire code; a plain GatepostError if the code is unknown."""
    return ERRORS_BY_CODE.get(code, GatepostError)(message)
