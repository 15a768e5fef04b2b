"""Every error Gatepost raises on purpose.

GatepostError
├── InvalidRequest            400 invalid_request
│   ├── InvalidId             400 invalid_id
│   └── MalformedEvent        400 malformed_event
├── Unauthorized              401 unauthorized
├── Forbidden                 403 forbidden
├── NotFound                  404 not_found
│   ├── UnknownAgent          404 unknown_agent
│   ├── UnknownMessage        404 unknown_message
│   └── UnknownBlob           404 unknown_blob
├── Conflict                  409 conflict
│   ├── IdempotencyConflict   409 idempotency_conflict
│   ├── WrongState            409 wrong_state
│   ├── StaleReceipt          409 stale_receipt
│   └── OutOfOrder            409 out_of_order
├── PayloadTooLarge           413 payload_too_large
├── MailboxFull               429 mailbox_full
├── RateLimited               429 rate_limited
├── Internal                  500 internal
├── Unavailable               503 unavailable
│   └── StorageFailed         503 storage_failed
├── DeadlineExceeded          504 deadline_exceeded
├── ConfigError               a settings file or variable that cannot be used
├── SealError                 a sealed payload that does not open
├── ChainError                a hash chain or signed head that does not verify
└── JournalError              a journal that cannot be opened
    ├── JournalLocked         another gateway holds it
    ├── JournalTooNew         written by a newer Gatepost
    └── JournalCorrupt        SQLite's own check failed

A message names what is wrong and what to do next, and never carries a secret.
"""

from typing import ClassVar


class GatepostError(Exception):
    """`code` and `status` travel on the wire; the text is for a person."""

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


class MalformedEvent(InvalidRequest):
    code = "malformed_event"


class Unauthorized(GatepostError):
    code, status = "unauthorized", 401


class Forbidden(GatepostError):
    code, status = "forbidden", 403


class NotFound(GatepostError):
    code, status = "not_found", 404


class UnknownAgent(NotFound):
    code = "unknown_agent"


class UnknownMessage(NotFound):
    code = "unknown_message"


class UnknownBlob(NotFound):
    code = "unknown_blob"


class Conflict(GatepostError):
    code, status = "conflict", 409


class IdempotencyConflict(Conflict):
    code = "idempotency_conflict"


class WrongState(Conflict):
    code = "wrong_state"


class StaleReceipt(Conflict):
    code = "stale_receipt"


class OutOfOrder(Conflict):
    code = "out_of_order"


class PayloadTooLarge(GatepostError):
    code, status = "payload_too_large", 413


class MailboxFull(GatepostError):
    code, status = "mailbox_full", 429


class RateLimited(GatepostError):
    code, status = "rate_limited", 429


class Internal(GatepostError):
    code, status = "internal", 500


class Unavailable(GatepostError):
    code, status = "unavailable", 503


class StorageFailed(Unavailable):
    code = "storage_failed"


class DeadlineExceeded(GatepostError):
    code, status = "deadline_exceeded", 504


class ConfigError(GatepostError):
    code = "config_error"


class SealError(GatepostError):
    code = "seal_error"


class ChainError(GatepostError):
    code = "chain_error"


class JournalError(GatepostError):
    code = "journal_error"


class JournalLocked(JournalError):
    code = "journal_locked"


class JournalTooNew(JournalError):
    code = "journal_too_new"


class JournalCorrupt(JournalError):
    code = "journal_corrupt"


def _leaves(cls: type[GatepostError]) -> dict[str, type[GatepostError]]:
    found = {cls.code: cls}
    for sub in cls.__subclasses__():
        found |= _leaves(sub)
    return found


BY_CODE: dict[str, type[GatepostError]] = _leaves(GatepostError)


def from_code(code: str, message: str) -> GatepostError:
    """The exception a wire error stands for; an unknown code stays a GatepostError."""
    return BY_CODE.get(code, GatepostError)(message)
