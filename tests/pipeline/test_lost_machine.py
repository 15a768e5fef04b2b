"""The runbook for a machine that is lost for good, with its own commands and real gateways."""

import contextlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gatepost.archive import manifest
from gatepost.archive.archive_store import ArchiveStore
from gatepost.pipeline.jobs.audit import audit_archive
from gatepost.pipeline.transport import LocalTransport
from tests.cli.conftest import Cli
from tests.gateway.tools import client
from tests.live_mesh.conftest import running
from tests.live_mesh.tools import Gateway, converge
from tests.waiting import wait_until

DOCS = Path(__file__).parents[2] / "docs" / "operations.md"
TITLE = "## A machine is lost for good"


@pytest.fixture
def gateways(tmp_path: Path) -> Iterator[tuple[Gateway, Gateway, Gateway]]:
    """Ann founded the room; lab has the agent `worker`; cat has nobody yet."""
    quick: dict[str, Any] = {
        "delivery__offline_secs": 0.5,
        "delivery__accept_timeout_secs": 1,
        "archive__uri": tmp_path / "archive",
        "archive__max_age_secs": 0.2,
    }
    with running(tmp_path, "ann", "lab", "cat", **quick) as (ann, lab, cat):
        for gateway in (lab, cat):
            gateway.join(ann)
        converge(ann, lab, cat)
        for gateway, agent in ((ann, "al"), (lab, "worker"), (cat, "cy")):
            gateway.call("PUT", f"/agents/{agent}")
        converge(ann, lab, cat)
        yield ann, lab, cat


def runbook_commands() -> list[list[str]]:
    section = DOCS.read_text().split(TITLE, 1)[1].split("\n## ", 1)[0]
    lines = re.findall(r"```sh\n(.*?)\n```", section, re.DOTALL)
    return [shlex.split(line)[1:] for line in lines]


def send(gateway: Gateway, sender: str, count: int) -> list[str]:
    body = {"from_agent": sender, "to_agent": "worker", "payload": "hi"}
    return [gateway.call("POST", "/messages", body)["event_id"] for _ in range(count)]


def states(gateway: Gateway, ids: list[str]) -> set[tuple[str, str | None]]:
    found = [gateway.call("GET", f"/messages/{id}") for id in ids]
    return {(each["state"], each.get("reason")) for each in found}


def take_all(gateway: Gateway) -> int:
    with client(gateway) as http:
        path = "/v1/mailboxes/worker"
        mail = http.post(f"{path}/dequeue", json={"limit": 100}).json()["messages"]
        http.post(f"{path}/ack", json={"receipts": [each["receipt"] for each in mail]})
    return len(mail)


def is_archived(archive: Path, gateway: Gateway) -> bool:
    listed = manifest.read_manifest(ArchiveStore.open(str(archive)), gateway.name)
    written = gateway.get("/v1/status")["outbox_seq"]
    return listed is not None and listed.archived_through >= written


def test_everything_ends_and_the_agent_lives_on(
    gateways: tuple[Gateway, Gateway, Gateway], tmp_path: Path
) -> None:
    ann, lab, cat = gateways
    accepted = send(ann, "al", 3) + send(cat, "cy", 2)
    wait_until(lambda: states(ann, accepted[:3]) == {("accepted", None)}, 10)
    wait_until(lambda: states(cat, accepted[3:]) == {("accepted", None)}, 10)
    with contextlib.ExitStack() as still:
        still.enter_context(lab.frozen())
        on_the_way = send(ann, "al", 3)
        lab.kill9()
        still.pop_all()
    wait_until(lambda: not ann.nodes()["lab"]["connected"], 10)
    wait_until(lambda: ann.nodes()["lab"]["status"] != "online", 10)
    waiting = send(ann, "al", 3)

    revoke, add, look = runbook_commands()
    ann_cli, cat_cli = Cli(ann.state_dir), Cli(cat.state_dir)
    ann_cli.ok(*revoke)
    gone = {("dead_letter", "owner_revoked")}
    wait_until(lambda: states(ann, accepted[:3] + on_the_way) == gone, 10)
    wait_until(lambda: states(cat, accepted[3:]) == gone, 10)
    cat_cli.ok(*add)
    wait_until(lambda: states(ann, waiting) == {("accepted", None)}, 10)
    new = send(ann, "al", 2)
    wait_until(lambda: states(ann, new) == {("accepted", None)}, 10)
    assert take_all(cat) == 5
    wait_until(lambda: states(ann, waiting + new) == {("processed", None)}, 10)

    shown = {each["event_id"]: each.get("verdict") for each in ann_cli.json(*look)["messages"]}
    assert shown == dict.fromkeys(accepted[:3], "accepted") | dict.fromkeys(on_the_way, None)
    archive = tmp_path / "archive"
    wait_until(lambda: is_archived(archive, ann) and is_archived(archive, cat), 20)
    tables = str(tmp_path / "tables")
    assert audit_archive(LocalTransport(), str(archive), tables).verdict == "undecided"
    found = audit_archive(LocalTransport(), str(archive), tables, absent=["lab"])
    assert (found.verdict, found.violations) == ("kept", {})
