"""Contracts of capabilities: JSON Schemas for the input and the output of their tasks.

A contract is content-addressed: every gateway that has its text can check it against the digest in
the room. Its schemas come from any member, so no gateway interprets them in its own process: see
`contract_worker`.
"""

from collections import OrderedDict
from collections.abc import Collection
from hashlib import sha256
from typing import Any, Literal

import msgspec
from msgspec import Struct

from gatepost.errors import ContractStoreFull, InvalidContract
from gatepost.journal.transaction import Tx

ContractPart = Literal["input", "output"]

MAX_CONTRACT_BYTES = 64 * 1024
# Limits on the contracts of one node. The operator's contracts are counted separately.
MAX_CONTRACTS, MAX_BYTES = 500, 8 * 1024 * 1024
MAX_ALL_CONTRACTS, MAX_ALL_BYTES = 10_000, 64 * 1024 * 1024
# A contract may arrive before the room update that refers to it.
UNUSED_MS = 3_600_000
_MAX_VERDICTS = 8192
# When to retry a check that was not finished.
RETRY_MS = 60_000

_KEEP = """
INSERT INTO contract (digest, body, source, checks_input, checks_output, at)
VALUES (?, ?, ?, ?, ?, ?)
"""
_CLAIM = "UPDATE contract SET source = '' WHERE digest = ?"
_SELECT = "SELECT source, checks_input, checks_output FROM contract WHERE digest = ?"
_SELECT_BODY = "SELECT body FROM contract WHERE digest = ?"
_COUNT = "SELECT count(*), coalesce(sum(length(body)), 0) FROM contract WHERE"
_SELECT_UNUSED = """
SELECT digest, source, at FROM contract
WHERE digest NOT IN (SELECT value FROM json_each(?))
    AND digest NOT IN (SELECT contract FROM capability)
"""


class ContractDocument(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The schemas of a task's input and output. True permits everything."""

    input: dict[str, Any] | bool = True
    output: dict[str, Any] | bool = True


class KeptContract(Struct, frozen=True):
    """A stored contract. `source` is the node that sent it; empty for this gateway's own."""

    digest: str
    source: str
    checks_input: bool
    checks_output: bool

    def checks(self, part: ContractPart) -> bool:
        """Whether a schema restricts this part; otherwise everything fits."""
        return self.checks_input if part == "input" else self.checks_output


class ContractVerdict(Struct, frozen=True):
    """The result of a check. `problem` is empty if the content fits.

    `until` is set if the check exceeded its limits; it can be retried then.
    """

    problem: str = ""
    until: int | None = None


class ContractVerdicts:
    """Verdicts about contents, each for exactly one contract, one part of it and one content.

    The event loop notes them, and transactions act on them. The oldest are forgotten.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, ContractPart, bytes], ContractVerdict] = OrderedDict()

    def note(
        self, contract: KeptContract, part: ContractPart, mark: bytes, verdict: ContractVerdict
    ) -> None:
        """`mark` is the fingerprint of the content, or the digest of the blob that has it."""
        self._known[contract.digest, part, mark] = verdict
        while len(self._known) > _MAX_VERDICTS:
            self._known.popitem(last=False)

    def find(
        self, contract: KeptContract, part: ContractPart, mark: bytes, now: int
    ) -> ContractVerdict | None:
        if not contract.checks(part):
            return ContractVerdict()
        found = self._known.get((contract.digest, part, mark))
        return None if found is None or (found.until or now) < now else found


def encode_contract(document: ContractDocument) -> bytes:
    """Canonical bytes of a contract; the digest is computed over them."""
    return msgspec.json.encode(document, order="sorted")


def contract_digest(body: bytes) -> str:
    return f"sha256:{sha256(body).hexdigest()}"


def read_contract(body: bytes) -> ContractDocument:
    """Decode a contract, without checking its schemas; InvalidContract if that fails."""
    if len(body) > MAX_CONTRACT_BYTES:
        raise InvalidContract(f"a contract has at most {MAX_CONTRACT_BYTES} bytes")
    try:
        return msgspec.json.decode(body, type=ContractDocument)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidContract(f"this is not a contract: {error}") from None


def keep_contract(tx: Tx, body: bytes, source: str = "") -> str:
    """Store a contract from the node `source` or from the operator; returns its digest.

    ContractStoreFull if the source has stored too many.
    """
    document = read_contract(body)
    digest = contract_digest(body)
    known = find_contract(tx, digest)
    if known is not None:
        if not source and known.source:
            tx.execute(_CLAIM, (digest,))
        return digest
    _require_capacity(tx, source, len(body))
    checks = [each not in (True, {}) for each in (document.input, document.output)]
    tx.execute(_KEEP, (digest, body, source, *checks, tx.now))
    return digest


def _require_capacity(tx: Tx, source: str, size: int) -> None:
    ((count, total),) = tx.fetch_all(f"{_COUNT} source = ?", (source,))
    if count >= MAX_CONTRACTS or total + size > MAX_BYTES:
        whose = f"{source} has brought" if source else "this gateway has published"
        raise ContractStoreFull(
            f"{whose} {count} contracts with {total} bytes;"
            f" {MAX_CONTRACTS} with {MAX_BYTES} bytes are kept"
        )
    if source:
        ((count, total),) = tx.fetch_all(f"{_COUNT} source != ''")
        if count >= MAX_ALL_CONTRACTS or total + size > MAX_ALL_BYTES:
            raise ContractStoreFull(
                f"this gateway has {count} contracts of other nodes, with {total} bytes"
            )


def find_contract(tx: Tx, digest: str) -> KeptContract | None:
    """The contract with this digest; None if this gateway does not have it."""
    row = tx.fetch_one(_SELECT, (digest,))
    return None if row is None else KeptContract(digest, row[0], bool(row[1]), bool(row[2]))


def load_contract_body(tx: Tx, digest: str) -> bytes | None:
    row = tx.fetch_one(_SELECT_BODY, (digest,))
    return None if row is None else bytes(row[0])


def drop_unused_contracts(tx: Tx, used: Collection[str], revoked: Collection[str]) -> int:
    """Forget the contracts that no capability refers to; returns how many.

    Those of a revoked node go at once, others after an hour.
    """
    rows = tx.fetch_all(_SELECT_UNUSED, (msgspec.json.encode(list(used)).decode(),))
    dropped = [
        (digest,)
        for digest, source, at in rows
        if source in revoked or at < tx.now - UNUSED_MS or at > tx.now
    ]
    tx.execute_many("DELETE FROM contract WHERE digest = ?", dropped)
    return len(dropped)
