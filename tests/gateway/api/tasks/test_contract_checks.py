"""A content that takes long to check keeps nobody waiting but the one who sent it."""

import asyncio
from typing import Any

import pytest

from gatepost.capabilities.contract import ContractDocument, compile_contract, encode_contract
from gatepost.capabilities.contract_process import encode_check, run_check
from gatepost.errors import ContractMismatch
from gatepost.gateway.api.tasks import contract_checks
from gatepost.gateway.api.tasks.contract_checks import ContractChecks

pytestmark = pytest.mark.anyio

LARGE = b"[" + b"1," * 400_000 + b"1]"
SLOW = {"items": {"allOf": [{"minimum": -n} for n in range(20)]}}


def contract_of(**schemas: Any) -> Any:
    return compile_contract(encode_contract(ContractDocument(**schemas)))


async def test_the_event_loop_goes_on_while_a_large_content_is_checked() -> None:
    """Such a check lets no other thread of its process run."""
    contract = contract_of(input=SLOW, output={"items": {"type": "string"}})
    checks, turns = ContractChecks(), 0
    with pytest.raises(ContractMismatch, match=r"result\[0\]: 1 is not"):
        await checks.check(contract, "result", LARGE)
    check = asyncio.create_task(checks.check(contract, "input", LARGE))
    while not check.done():
        await asyncio.sleep(0.001)
        turns += 1
    await check
    assert turns > 10


async def test_a_check_that_takes_too_long_is_a_mismatch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract_checks, "_DEADLINE_SECS", 0.001)
    with pytest.raises(ContractMismatch, match="too much time or memory"):
        await ContractChecks().check(contract_of(input=SLOW), "input", LARGE)


def test_the_process_says_the_same_as_the_gateway() -> None:
    contract = contract_of(input={"type": "object"}, output={"type": "string"})
    assert run_check(encode_check(contract, b"{}"), "input") == ""
    assert run_check(encode_check(contract, b'"x"'), "result") == ""
    assert run_check(encode_check(contract, b"1"), "result") == 'result: 1 is not of type "string"'
