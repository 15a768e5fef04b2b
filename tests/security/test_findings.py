"""Attacks with findings: nobody overrides the advice of others, or hides their reviews."""

import time
from typing import Any

from gatepost.room import EtaAdviceRecord, ReviewRecord
from simulation.hostile import HostileNode
from tests.security.siege import Siege
from tests.security.test_skills import capability, publish, withdraw
from tests.waiting import wait_until

FLOOD = 4000


def now() -> int:
    return int(time.time() * 1000)


def review(id: str, **fields: object) -> dict[str, object]:
    return {
        "id": id,
        "capabilityId": "advised",
        "delegationSkillVersion": "1.1",
        "executorSkillVersion": "1.2",
        "failureClass": "terminal_error",
        "count": 4,
        "raisedAt": now() - 3_600_000,
        **fields,
    }


def test_a_node_neither_overrides_advice_nor_hides_reviews(
    siege: Siege, mallory: HostileNode
) -> None:
    publish(siege.bob, capability("advised", "bo"))
    figures = {"p50Secs": 3.5, "p95Secs": 20.0, "recommendedEtaSeconds": 30, "samples": 100}
    siege.bob.call("POST", "/eta-advice", [{"capabilityId": "advised", **figures, "at": now()}])
    real = [f"real-{n}" for n in range(5)]
    siege.bob.call("POST", "/reviews", [review(id) for id in real])
    wait_until(lambda: set(real) <= _reviews(siege, 1000))
    wait_until(lambda: _advice(siege) == 30)
    with mallory.connect() as connection:
        lie = EtaAdviceRecord(
            p50_ms=1, p95_ms=1, recommended_eta_seconds=1, samples=1, at=now() + 10**10
        )
        flood = [
            mallory.sign(
                "reviews",
                f"flood-{n}@{mallory.name}",
                ReviewRecord(
                    capability_id="advised",
                    delegation_skill_version="1",
                    executor_skill_version="1",
                    failure_class="terminal_error",
                    raised_at=now(),
                ),
            )
            for n in range(FLOOD)
        ]
        connection.send_records(mallory.sign("eta", f"advised@{mallory.name}", lie), *flood)
        last = f"reviews flood-{FLOOD - 1}@{mallory.name}"
        wait_until(lambda: last in siege.ann.records(), 120)
    assert f"eta advised@{mallory.name}" in siege.ann.records()
    assert _advice(siege) == 30
    assert set(real) <= _reviews(siege, 20)
    assert len(_reviews(siege, 1000)) <= 500 + len(real)
    health = siege.ann.call("GET", "/capabilities/advised/health")
    assert health["open_reviews"] <= 500 + len(real)
    for id in real:
        siege.bob.call("POST", f"/reviews/{id}/dismiss", {})
    withdraw(siege.bob, "advised")


def _reviews(siege: Siege, limit: int) -> set[str]:
    found: list[Any] = siege.ann.call("GET", f"/reviews?limit={limit}")
    return {each["id"] for each in found}


def _advice(siege: Siege) -> int | None:
    found = {each["capability_id"]: each for each in siege.ann.call("GET", "/eta-advice")}
    return None if "advised" not in found else int(found["advised"]["recommended_eta_seconds"])


def test_a_node_closes_no_review_before_its_gateway_has_shared_it(
    siege: Siege, mallory: HostileNode
) -> None:
    """The ids of reviews follow from what is public, so anybody knows the next one."""
    settled = ReviewRecord(
        capability_id="job",
        delegation_skill_version="1",
        executor_skill_version="1",
        failure_class="terminal_error",
        raised_at=now(),
        status="dismissed",
        settled_at=now(),
        settled_by="bob",
    )
    with mallory.connect() as connection:
        connection.send_records(mallory.sign("reviews", f"next-one@{mallory.name}", settled))
        wait_until(lambda: f"reviews next-one@{mallory.name}" in siege.ann.records())
    siege.ann.call("POST", "/reviews", [review("next-one")])
    wait_until(lambda: "reviews next-one@ann" in siege.bob.records())
    for gateway in (siege.ann, siege.bob):
        found = {each["id"]: each for each in gateway.call("GET", "/reviews?limit=1000")}
        assert found["next-one"]["status"] == "open"
    siege.ann.call("POST", "/reviews/next-one/dismiss", {})
