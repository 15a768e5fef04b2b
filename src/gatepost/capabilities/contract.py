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

from gatepost.capabilities.schema_cost import check_cost
from gatepost.errors import ContractMismatch, InvalidRequest
from gatepost.journal.transaction import Tx

MAX_CONTRACT_BYTES = 64 * 1024
MAX_DEPTH = 32
MAX_CONTRACTS = 10_000
_COMPILED = 256
_MAX_PROBLEMS = 3

_KEEP = "INSERT OR IGNORE INTO contract (digest, body, at) VALUES (?, ?, ?)"
_SELECT = "SELECT body FROM contract WHERE digest = ?"


class ContractDocument(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The schemas of a task's input and output. True permits everything."""

    input: dict[str, Any] | bool = True
    output: dict[str, Any] | bool = True


class Contract:
    """A contract whose schemas are compiled."""

    def __init__(self, document: ContractDocument) -> None:
        self._input = _compile(document.input, "input")
        self._output = _compile(document.output, "output")

    def check_input(self, payload: bytes) -> None:
        """Raise ContractMismatch unless the input of a task fits."""
        _check(self._input, payload, "input")

    def check_output(self, payload: bytes) -> None:
        _check(self._output, payload, "result")


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


def _compile(schema: dict[str, Any] | bool, name: str) -> Any:
    import jsonschema_rs

    for depth, key, value in _walk(schema):
        if depth > MAX_DEPTH:
            raise InvalidRequest(f"the {name} schema is nested deeper than {MAX_DEPTH}")
        if key in ("$ref", "$dynamicRef") and not str(value).startswith("#"):
            raise InvalidRequest(f"the {name} schema refers to {str(value)[:80]!r}, outside itself")
        if key in ("$id", "$schema") and depth > 0:
            raise InvalidRequest(f"the {name} schema has a {key} inside")
    check_cost(schema, name)
    try:
        return jsonschema_rs.Draft202012Validator(
            # An expression that takes for ever must not: this engine takes linear time.
            schema,
            offline=True,
            pattern_options=jsonschema_rs.RegexOptions(),
        )
    except (ValueError, jsonschema_rs.ValidationError) as error:
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


def _check(validator: Any, payload: bytes, name: str) -> None:
    value = msgspec.json.decode(payload)
    problems = []
    for problem in validator.iter_errors(value):
        path = "".join(f"[{part!r}]" for part in problem.instance_path)
        problems.append(f"{name}{path}: {problem.message[:200]}")
        if len(problems) == _MAX_PROBLEMS:
            break
    if problems:
        raise ContractMismatch("; ".join(problems))
