from typing import Any

import msgspec
import pytest

from gatepost.capabilities.contract import (
    MAX_CONTRACT_BYTES,
    ContractDocument,
    compile_contract,
    contract_digest,
    encode_contract,
    find_contract,
    keep_contract,
)
from gatepost.errors import ContractMismatch, InvalidRequest
from tests.hub.harness import HubHarness

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def body(**schemas: Any) -> bytes:
    return encode_contract(ContractDocument(**schemas))


def test_input_and_output_are_checked_apart() -> None:
    contract = compile_contract(body(input=NUMBER, output={"type": "string"}))
    contract.check_input(b'{"n": 1}')
    contract.check_output(b'"fine"')
    with pytest.raises(ContractMismatch, match=r"input\['n'\]: .* is not of type"):
        contract.check_input(b'{"n": "x"}')
    with pytest.raises(ContractMismatch, match='"n" is a required property'):
        contract.check_input(b"{}")
    with pytest.raises(ContractMismatch, match="result: 1 is not of type"):
        contract.check_output(b"1")


def test_a_contract_without_schemas_permits_everything() -> None:
    contract = compile_contract(body())
    contract.check_input(b"null")
    contract.check_output(b"[1]")


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "nonsense"}, "cannot be used"),
        ({"properties": {"a": {"$ref": "http://example.org/schema"}}}, "outside itself"),
        ({"$ref": "file:///etc/passwd"}, "outside itself"),
        ({"properties": {"a": {"$id": "http://x/"}}}, "inside"),
        (deep(40), "nested deeper"),
        ({"pattern": "("}, "cannot be used"),
    ],
)
def test_a_contract_that_cannot_be_used_is_refused(schema: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        compile_contract(body(input=schema))


@pytest.mark.parametrize("text", [b"[]", b'{"colour": {}}', b"{", b" " * (MAX_CONTRACT_BYTES + 1)])
def test_other_texts_are_no_contracts(text: bytes) -> None:
    with pytest.raises(InvalidRequest):
        compile_contract(text)


def test_an_expression_cannot_take_for_ever() -> None:
    contract = compile_contract(body(input={"pattern": "^(a+)+$"}))
    with pytest.raises(ContractMismatch):
        contract.check_input(b'"' + b"a" * 10_000 + b'!"')


def test_references_inside_a_contract_are_fine() -> None:
    schema = {"$defs": {"n": {"type": "integer"}}, "items": {"$ref": "#/$defs/n"}}
    contract = compile_contract(body(input=schema))
    contract.check_input(b"[1]")
    with pytest.raises(ContractMismatch):
        contract.check_input(b'["x"]')


def test_a_contract_is_kept_by_its_digest(hub: HubHarness) -> None:
    text = body(input=NUMBER)
    digest = hub.run(lambda tx: keep_contract(tx, text))
    assert digest == contract_digest(text)
    assert hub.run(lambda tx: keep_contract(tx, text)) == digest
    found = hub.run(lambda tx: find_contract(tx, digest))
    assert found is not None
    assert hub.run(lambda tx: find_contract(tx, "sha256:none")) is None


# Contracts of at most 64 KiB, and inputs that travel inline. Described in full, the first of them
# took 49 s, and the second took all memory.
ONES = b"[" + b"1," * 32_000 + b"1]"
HOSTILE: dict[str, tuple[dict[str, Any], bytes]] = {
    "options": ({"items": {"enum": [*range(10_000, 20_000)]}}, ONES),
    "alternatives": ({"anyOf": [{"type": "string", "maxLength": n} for n in range(1900)]}, ONES),
    "looking for each": (
        {"allOf": [{"not": {"contains": {"const": n}}} for n in range(600)]},
        ONES,
    ),
    "conditions": (
        {"items": {"dependentRequired": {f"a{n}": ["b"] for n in range(3000)}}},
        b"[" + b"{}," * 20_000 + b"{}]",
    ),
    "expressions": (
        {"anyOf": [{"pattern": f"(?:a|b)*a(?:a|b){{{n}}}c"} for n in range(300, 315)]},
        b'"' + b"ab" * 30_000 + b'"',
    ),
    "compared objects": ({"items": {"enum": [{"a": n} for n in range(1500)]}}, ONES),
    "multiples": ({"items": {"allOf": [{"multipleOf": 0.25}] * 900}}, ONES),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_an_input_takes_little_time_and_memory_whatever_the_contract(name: str) -> None:
    schema, payload = HOSTILE[name]
    contract = compile_contract(body(input=schema))
    with pytest.raises(ContractMismatch, match=r"too many parts|too large|is not one of"):
        contract.check_input(payload)


@pytest.mark.parametrize("payload", [b"[" * 30_000 + b"]" * 30_000, b"[" * 900 + b"]" * 900])
def test_an_input_that_is_nested_too_deep_does_not_fit(payload: bytes) -> None:
    contract = compile_contract(body(input={"not": {"$ref": "#"}}))
    with pytest.raises(ContractMismatch, match=r"cannot be checked|does not fit|too many parts"):
        contract.check_input(payload)


def test_an_honest_input_of_the_largest_size_is_checked() -> None:
    row = {"id": "^[0-9a-f]{8}$", "mail": "^[A-Za-z0-9.]+@[A-Za-z0-9.]+$"}
    fields: dict[str, Any] = {
        name: {"type": "string", "pattern": each} for name, each in row.items()
    }
    fields |= {f"f{n}": {"type": ["number", "null"], "minimum": 0} for n in range(30)}
    kinds = {"enum": [f"kind-{n}" for n in range(300)]}
    schema = {"items": {"type": "object", "properties": {**fields, "kind": kinds}}}
    given: dict[str, Any] = {"id": "0123abcd", "mail": "al@example.org", "kind": "kind-7"}
    given |= {f"f{n}": n for n in range(30)}
    contract = compile_contract(body(input=schema))
    payload = msgspec.json.encode([given] * 210)
    assert 60_000 < len(payload) < 65_536
    contract.check_input(payload)
    with pytest.raises(ContractMismatch):
        contract.check_input(payload.replace(b"kind-7", b"kind-x"))
