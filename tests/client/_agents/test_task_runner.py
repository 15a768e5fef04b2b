from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gatepost.client import Client, Reject
from gatepost.client._agents.task_runner import TaskRunner
from gatepost.client._message import Message
from gatepost.client._task import AgentTask
from gatepost.wire.operations import EventInfo
from gatepost.wire.tasks import TaskReport

pytestmark = pytest.mark.anyio

SKILL = {"capability_id": "review", "delegation_skill": {"ref": "skills/ask", "version": "2"}}


def skill_task(sender: str) -> AgentTask:
    message = cast(Message, SimpleNamespace(msg_id="m:1", from_=sender, event=None))
    document: Any = {"taskType": "skill_distribution", "input": SKILL}
    return AgentTask(message, document, cast(Client, None), "bo")


async def test_reports_name_the_attempt_and_not_the_id_of_the_requester() -> None:
    reports: list[TaskReport] = []

    async def report_task(report: TaskReport) -> None:
        reports.append(report)

    client = cast(Client, SimpleNamespace(report_task=report_task))
    for attempt, root in (("e1", None), ("e2", "e1"), ("e3", "e1")):
        event = EventInfo(attempt, "task_create", attempt, task_id=root)
        message = cast(Message, SimpleNamespace(msg_id=attempt, from_="al", event=event))
        task = AgentTask(message, {"input": 1}, client, "bo")
        await task.accept("receipt", None)
        await task.update(0.5)
        await task.complete(1)
        await task.fail("odd", "sorry")
        assert (task.id, task.attempt_id) == ("e1", attempt)
        assert {report.task_id for report in reports} == {attempt}
        reports.clear()


@pytest.fixture
def runner() -> TaskRunner:
    with ThreadPoolExecutor(1) as threads:
        return TaskRunner(cast(Client, None), "bo", None, None, threads)


async def test_a_skill_of_its_own_gateway_is_installed(runner: TaskRunner) -> None:
    assert await runner._call_handler(skill_task("gateway")) == {
        "status": "installed",
        "version": "2",
    }
    assert runner.skills == {"review": SKILL}


@pytest.mark.parametrize("sender", ["gateway@vps", "mallory", "operator"])
async def test_a_skill_of_any_other_sender_is_rejected(runner: TaskRunner, sender: str) -> None:
    with pytest.raises(Reject):
        await runner._call_handler(skill_task(sender))
    assert runner.skills == {}
