"""What the process says about contracts and contents; how it is ended is in test_contract_pool."""

from contextlib import closing
from io import BytesIO
from typing import Any

import msgspec
import pytest

from gatepost.tasks.capabilities.contract import ContractDocument, encode_contract
from gatepost.tasks.contract_checks import contract_worker
from gatepost.tasks.contract_checks.contract_worker import (
    LENGTH_BYTES,
    CheckAnswer,
    CheckRequest,
    ContractWorker,
    KnownTexts,
    check_content,
    compile_contract,
)

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def body(**schemas: Any) -> bytes:
    return encode_contract(ContractDocument(**schemas))


def check(part: str, content: bytes, **schemas: Any) -> str:
    return check_content(compile_contract(body(**schemas)), part, content)


def test_input_and_output_are_checked_apart() -> None:
    schemas: dict[str, Any] = {"input": NUMBER, "output": {"type": "string"}}
    assert check("input", b'{"n": 1}', **schemas) == ""
    assert check("output", b'"fine"', **schemas) == ""
    assert (
        check("input", b'{"n": "x"}', **schemas) == """input['n']: "x" is not of type "integer\""""
    )
    assert check("input", b"{}", **schemas) == 'input: "n" is a required property'
    assert check("output", b"1", **schemas) == 'result: 1 is not of type "string"'


def test_names_of_properties_may_be_names_of_keywords() -> None:
    schema = {"properties": {name: {"type": "string"} for name in ("$ref", "$id", "$defs", "enum")}}
    assert (
        check("input", b'{"$ref": "x", "$id": "y", "$defs": "z", "enum": "a"}', input=schema) == ""
    )
    assert "input['$ref']" in check("input", b'{"$ref": 1}', input=schema)


def test_references_inside_a_contract_are_followed() -> None:
    schema = {"$defs": {"n": {"type": "integer"}}, "items": {"$ref": "#/$defs/n"}}
    assert check("input", b"[1]", input=schema) == ""
    assert check("input", b'["x"]', input=schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"properties": {"a": {"$ref": "http://127.0.0.1:1/schema"}}},
        {"$ref": "file:///etc/passwd"},
        {"$id": "http://127.0.0.1:1/a", "$ref": "b"},
        {"$ref": "#/$defs/x"},
        {"pattern": "("},
        {"pattern": "[^a]{1,9999}"},
    ],
)
def test_a_schema_that_cannot_be_used_is_named(schema: Any) -> None:
    compiled = compile_contract(body(output=schema))
    assert compiled.problem.startswith("the output schema cannot be used: ")
    problem = check_content(compiled, "input", b"1")
    assert problem.startswith("input: cannot be checked: the output schema")


def test_an_expression_cannot_take_for_ever() -> None:
    assert check("input", b'"' + b"a" * 10_000 + b'!"', input={"pattern": "^(a+)+$"})


@pytest.mark.parametrize("content", [b"{", b"[" * 30_000 + b"]" * 30_000])
def test_a_content_that_cannot_be_read_does_not_fit(content: bytes) -> None:
    assert "cannot be checked" in check("input", content, input={"type": "array"})


def test_what_a_large_content_lacks_is_not_described() -> None:
    schema = {"items": {"enum": [*range(10_000, 20_000)]}}
    assert "too large to say where" in check("input", b"[" + b"1," * 9000 + b"1]", input=schema)


# -- the messages


@pytest.fixture(autouse=True)
def _large(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of the tests is larger than one that only checks contracts."""
    monkeypatch.setattr(contract_worker, "_MAX_RESIDENT_BYTES", 1 << 40)


def ask(*requests: tuple[CheckRequest, bytes, bytes]) -> list[CheckAnswer]:
    source, target = BytesIO(), BytesIO()
    for request, text, content in requests:
        encoded = msgspec.msgpack.encode(request)
        source.write(len(encoded).to_bytes(LENGTH_BYTES) + encoded + text + content)
    source.seek(0)
    with closing(ContractWorker(source, target)) as worker:
        worker.serve()
    target.seek(0)
    answers = []
    while head := target.read(LENGTH_BYTES):
        answers.append(msgspec.msgpack.decode(target.read(int.from_bytes(head)), type=CheckAnswer))
    return answers


def request(
    batch: int, digest: str, text: bytes, content: bytes
) -> tuple[CheckRequest, bytes, bytes]:
    head = CheckRequest(batch, digest, "input", len(text), len(content), 10.0)
    return head, text, content


def test_a_contract_is_sent_once() -> None:
    text = body(input={"type": "integer"})
    first, second = ask(request(1, "a", text, b"1"), request(2, "a", b"", b'"x"'))
    assert first.problem == "" and second.problem.startswith("input: ")


def test_both_ends_forget_contracts_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract_worker, "_COMPILED", 2)
    known, requests = KnownTexts(), []
    for n, digest in enumerate("aabbcaab"):
        text = body(input={"const": digest}) if known.add(digest) else b""
        requests.append(request(n, digest, text, b'"%s"' % digest.encode()))
    assert any(not text for _, text, _ in requests)
    assert [each.problem for each in ask(*requests)] == [""] * 8


def test_a_batch_is_cut_off_between_two_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract_worker, "_BATCH_SECS", 0.0)
    text = body(input={"type": "integer"})
    answers = ask(
        request(1, "a", text, b"1"), request(1, "a", b"", b"1"), request(2, "a", b"", b"1")
    )
    assert [each.is_deferred for each in answers] == [False, True, False]


def test_a_process_that_has_grown_ends_after_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract_worker, "_MAX_RESIDENT_BYTES", 1)
    text = body(input={"type": "integer"})
    assert len(ask(request(1, "a", text, b"1"), request(2, "a", b"", b"1"))) == 1
