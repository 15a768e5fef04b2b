import msgspec
import pytest

from gatepost.wire.tasks import NewTask, TaskAwait, TaskReport, TaskReports, TaskView

ID = "01a1e43d-9d8d-718e-9067-c0d71feb1aaf"


def test_a_task_has_ended_once_it_has_a_time_of_its_end() -> None:
    assert not TaskView(ID, "b", "running", "running", "a").has_ended
    assert TaskView(ID, "b", "failed", "failed", "a", ended_at=1).has_ended


@pytest.mark.parametrize(
    ("type", "body"),
    [
        (NewTask, {"from_agent": "../a"}),
        (NewTask, {"from_agent": "a", "to_agents": ["b"] * 1001}),
        (NewTask, {"from_agent": "a", "description": "x" * 20_000}),
        (NewTask, {"from_agent": "a", "colour": 1}),
        (TaskReport, {"task_id": ID, "agent": "a", "action": "explode"}),
        (TaskReport, {"task_id": ID, "agent": "a", "action": "update", "progress": 1.5}),
        (TaskReport, {"task_id": ID, "agent": "a", "action": "fail", "error_code": "Not A Code"}),
        (TaskReports, {"op": "task_report", "reports": []}),
        (TaskAwait, {"op": "task_await", "task_id": "x"}),
    ],
)
def test_what_is_out_of_bounds_is_refused(type: type, body: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(body), type=type)
