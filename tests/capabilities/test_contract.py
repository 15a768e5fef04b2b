from typing import Any

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
