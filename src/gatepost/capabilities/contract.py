"""Contracts of capabilities: JSON Schemas for the input and the output of their tasks.

A contract is content-addressed: every gateway that has its text can check it against the digest in
the room. It may not refer to anything outside itself.
"""

from collections.abc import Iterator
from functools import lru_cache
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct

from gatepost.capabilities.schema_cost import (
    EXPRESSION_BYTES,
    SchemaCost,
    compile_schema,
    measure_cost,
)
from gatepost.errors import ContractMismatch, InvalidRequest
from gatepost.journal.transaction import Tx

MAX_CONTRACT_BYTES = 64 * 1024
MAX_DEPTH = 32
MAX_CONTRACTS = 10_000
# The validator lets no other thread run: a check of more steps needs a process of its own.
MAX_STEPS = 6_000_000
_COMPILED = 64
# The description of a problem has a copy of the value for each alternative in the schema.
_MAX_DESCRIBED = 50_000_000

_KEEP = "INSERT OR IGNORE INTO contract (digest, body, at) VALUES (?, ?, ?)"
_SELECT = "SELECT body FROM contract WHERE digest = ?"


class ContractDocument(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The schemas of a task's input and output. True permits everything."""

    input: dict[str, Any] | bool = True
    output: dict[str, Any] | bool = True


class Contract:
    """A contract whose schemas are compiled."""

    def __init__(self, document: ContractDocument) -> None:
        self.document = document
        self.input = ContractSchema(document.input, "input")
        self.output = ContractSchema(document.output, "result", "output")

    def check_input(self, payload: bytes) -> None:
        """Raise ContractMismatch unless the input of a task fits, or if that takes too long."""
        self.input.check_quickly(payload)

    def check_output(self, payload: bytes) -> None:
        self.output.check_quickly(payload)


class ContractSchema:
    """One schema of a contract. `content` names the content that it describes."""

    def __init__(
        self, schema: dict[str, Any] | bool, content: str, name: str | None = None
    ) -> None:
        self._permits_everything = schema is True
        self._content = content
        self._schema_bytes = len(msgspec.json.encode(schema))
        self._cost, self._validator = _compile(schema, name or content)

    def is_quick(self, payload: bytes) -> bool:
        """Whether a check of this JSON text takes a few hundredths of a second at most."""
        if self._permits_everything:
            return True
        # To count the steps of a very long text takes too long itself.
        return len(payload) <= MAX_STEPS and self._cost.count_steps(payload) <= MAX_STEPS

    def check_quickly(self, payload: bytes) -> None:
        """Raise ContractMismatch unless the content fits, and unless that is quick to say."""
        if not self.is_quick(payload):
            raise ContractMismatch(
                f"{self._content}: has too many parts for the schema of its capability"
            )
        self.check(payload)

    def check(self, payload: bytes) -> None:
        """Raise ContractMismatch unless the content fits."""
        if self._permits_everything:
            return
        try:
            value = msgspec.json.decode(payload)
            if self._validator.is_valid(value):
                return
            problem = self._describe_problem(payload, value)
        except (RecursionError, ValueError) as error:
            problem = f": cannot be checked: {error}"
        raise ContractMismatch(f"{self._content}{problem}")

    def _describe_problem(self, payload: bytes, value: Any) -> str:
        import jsonschema_rs

        if len(payload) * self._schema_bytes > _MAX_DESCRIBED:
            return ": does not fit, and is too large to say where"
        try:
            self._validator.validate(value)
        except jsonschema_rs.ValidationError as error:
            path = "".join(f"[{part!r}]" for part in error.instance_path)
            return f"{path}: {error.message[:200]}"
        return ": does not fit"


def encode_contract(document: ContractDocument) -> bytes:
    """The one encoding of a contract, which its digest is of."""
    return msgspec.json.encode(document, order="sorted")


def contract_digest(body: bytes) -> str:
    return f"sha256:{sha256(body).hexdigest()}"


@lru_cache(maxsize=_COMPILED)
def compile_contract(body: bytes) -> Contract:
    """Compile a contract; InvalidRequest names what is wrong with it."""
    if len(body) > MAX_CONTRACT_BYTES:
        raise InvalidRequest(f"a contract has at most {MAX_CONTRACT_BYTES} bytes")
    try:
        document = msgspec.json.decode(body, type=ContractDocument)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidRequest(f"this is no contract: {error}") from None
    return Contract(document)


def keep_contract(tx: Tx, body: bytes) -> str:
    """Keep a contract that can be compiled; returns its digest."""
    compile_contract(body)
    ((count,),) = tx.fetch_all("SELECT count(*) FROM contract")
    if count >= MAX_CONTRACTS:
        raise InvalidRequest(f"this gateway keeps {MAX_CONTRACTS} contracts already")
    digest = contract_digest(body)
    tx.execute(_KEEP, (digest, body, tx.now))
    return digest


def find_contract(tx: Tx, digest: str) -> Contract | None:
    """The contract with this digest; None if this gateway does not have it."""
    row = tx.fetch_one(_SELECT, (digest,))
    return None if row is None else compile_contract(bytes(row[0]))


def _compile(schema: dict[str, Any] | bool, name: str) -> tuple[SchemaCost, Any]:
    for depth, key, value in _walk(schema):
        if depth > MAX_DEPTH:
            raise InvalidRequest(f"the {name} schema is nested deeper than {MAX_DEPTH}")
        if key in ("$ref", "$dynamicRef") and not str(value).startswith("#"):
            raise InvalidRequest(f"the {name} schema refers to {str(value)[:80]!r}, outside itself")
        if key in ("$id", "$schema") and depth > 0:
            raise InvalidRequest(f"the {name} schema has a {key} inside")
    cost = measure_cost(schema, name)
    try:
        return cost, compile_schema(schema, EXPRESSION_BYTES[-1])
    except ValueError as error:
        first = str(error).splitlines()[0]
        raise InvalidRequest(f"the {name} schema cannot be used: {first}") from None


def _walk(schema: Any, depth: int = 0) -> Iterator[tuple[int, str, Any]]:
    """Every key of a schema with its depth and value."""
    if depth > MAX_DEPTH + 1:
        return
    if isinstance(schema, dict):
        for key, value in schema.items():
            yield depth, key, value
            yield from _walk(value, depth + 1)
    elif isinstance(schema, list):
        for value in schema:
            yield depth, "", value
            yield from _walk(value, depth + 1)
