from typing import Any

import pytest

from gatepost.errors import ContractStoreFull, InvalidRequest
from gatepost.tasks.capabilities import contract as contracts
from gatepost.tasks.capabilities.contract import (
    MAX_BYTES,
    MAX_CONTRACT_BYTES,
    MAX_CONTRACTS,
    UNUSED_MS,
    ContractDocument,
    ContractVerdict,
    ContractVerdicts,
    KeptContract,
    contract_digest,
    drop_unused_contracts,
    encode_contract,
    find_contract,
    keep_contract,
    load_contract_body,
    read_contract,
)
from tests.tasks.harness import HubHarness

STRICT = KeptContract("sha256:a", "", True, True)


def body(**schemas: Any) -> bytes:
    return encode_contract(ContractDocument(**schemas))


def numbered(n: int) -> bytes:
    return body(input={"maximum": n})


def count(hub: HubHarness, source: str) -> int:
    ((found,),) = hub.connection.execute(
        "SELECT count(*) FROM contract WHERE source = ?", (source,)
    ).fetchall()
    return int(str(found))


@pytest.mark.parametrize(
    "text",
    [b"[]", b'{"colour": {}}', b"{", b" " * (MAX_CONTRACT_BYTES + 1), b'{"input":' * 9000],
)
def test_other_texts_are_not_contracts(text: bytes) -> None:
    with pytest.raises(InvalidRequest):
        read_contract(text)


def test_a_contract_is_kept_by_its_digest(hub: HubHarness) -> None:
    text = body(input={"type": "object"})
    digest = hub.run(lambda tx: keep_contract(tx, text, "bob"))
    assert digest == contract_digest(text)
    assert hub.run(lambda tx: keep_contract(tx, text, "carol")) == digest
    assert hub.run(lambda tx: find_contract(tx, digest)) == KeptContract(
        digest, "bob", checks_input=True, checks_output=False
    )
    assert hub.run(lambda tx: load_contract_body(tx, digest)) == text
    assert hub.run(lambda tx: find_contract(tx, "sha256:none")) is None


def test_a_contract_that_is_published_here_counts_as_the_operators(hub: HubHarness) -> None:
    text = body(input={"type": "object"})
    digest = hub.run(lambda tx: keep_contract(tx, text, "bob"))
    hub.run(lambda tx: keep_contract(tx, text))
    found = hub.run(lambda tx: find_contract(tx, digest))
    assert found is not None and found.source == ""


def test_one_node_cannot_fill_the_store_for_others(hub: HubHarness) -> None:
    for n in range(MAX_CONTRACTS):
        hub.run(lambda tx, n=n: keep_contract(tx, numbered(n), "mallory"))  # type: ignore[misc]
    with pytest.raises(ContractStoreFull, match="mallory has brought 500 contracts"):
        hub.run(lambda tx: keep_contract(tx, numbered(-1), "mallory"))
    hub.run(lambda tx: keep_contract(tx, numbered(0), "mallory"))
    hub.run(lambda tx: keep_contract(tx, numbered(-1), "bob"))
    hub.run(lambda tx: keep_contract(tx, numbered(-2)))
    assert (count(hub, "mallory"), count(hub, "bob"), count(hub, "")) == (MAX_CONTRACTS, 1, 1)


def test_the_bytes_of_one_node_are_bounded_too(hub: HubHarness) -> None:
    with pytest.raises(ContractStoreFull):
        for n in range(MAX_CONTRACTS):
            text = body(input={"title": f"{n}" + "x" * 60_000})
            hub.run(lambda tx, text=text: keep_contract(tx, text, "mallory"))  # type: ignore[misc]
    assert count(hub, "mallory") == MAX_BYTES // len(body(input={"title": "10" + "x" * 60_000}))


def test_all_nodes_together_leave_room_for_the_operator(
    hub: HubHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contracts, "MAX_ALL_CONTRACTS", 10)
    for n in range(10):
        hub.run(lambda tx, n=n: keep_contract(tx, numbered(n), f"n{n}"))  # type: ignore[misc]
    with pytest.raises(ContractStoreFull, match="10 contracts of other nodes"):
        hub.run(lambda tx: keep_contract(tx, numbered(10), "bob"))
    hub.run(lambda tx: keep_contract(tx, numbered(10)))


def test_contracts_that_no_capability_refers_to_are_dropped(hub: HubHarness) -> None:
    used, unused, revoked = (
        hub.run(lambda tx, n=n, source=source: keep_contract(tx, numbered(n), source))  # type: ignore[misc]
        for n, source in enumerate(("bob", "bob", "mallory"))
    )
    assert hub.run(lambda tx: drop_unused_contracts(tx, {used}, {"mallory"})) == 1
    assert hub.run(lambda tx: find_contract(tx, revoked)) is None
    assert hub.run(lambda tx: find_contract(tx, unused)) is not None
    hub.clock.advance(UNUSED_MS + 1)
    assert hub.run(lambda tx: drop_unused_contracts(tx, {used}, ())) == 1
    assert hub.run(lambda tx: find_contract(tx, unused)) is None
    assert hub.run(lambda tx: find_contract(tx, used)) is not None


def test_a_verdict_is_about_one_contract_one_part_and_one_content() -> None:
    verdicts, other = ContractVerdicts(), KeptContract("sha256:b", "", True, True)
    verdicts.note(STRICT, "input", b"mark", ContractVerdict("no"))
    assert verdicts.find(STRICT, "input", b"mark", 0) == ContractVerdict("no")
    assert verdicts.find(STRICT, "output", b"mark", 0) is None
    assert verdicts.find(STRICT, "input", b"other", 0) is None
    assert verdicts.find(other, "input", b"mark", 0) is None


def test_a_part_without_a_schema_needs_no_verdict() -> None:
    lenient = KeptContract("sha256:a", "", checks_input=False, checks_output=True)
    assert ContractVerdicts().find(lenient, "input", b"", 0) == ContractVerdict()
    assert ContractVerdicts().find(lenient, "output", b"", 0) is None


def test_a_verdict_of_an_unfinished_check_does_not_last() -> None:
    verdicts = ContractVerdicts()
    verdicts.note(STRICT, "input", b"mark", ContractVerdict("too long", until=100))
    assert verdicts.find(STRICT, "input", b"mark", 100) is not None
    assert verdicts.find(STRICT, "input", b"mark", 101) is None


def test_verdicts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contracts, "_MAX_VERDICTS", 3)
    verdicts = ContractVerdicts()
    for n in range(5):
        verdicts.note(STRICT, "input", b"%d" % n, ContractVerdict())
    known = [n for n in range(5) if verdicts.find(STRICT, "input", b"%d" % n, 0)]
    assert known == [2, 3, 4]
