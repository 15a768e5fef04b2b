import pytest

from gatepost.errors import ExpiredToken, InvalidToken, Revoked, WrongState
from gatepost.tasks.sessions import claim_session, end_session
from gatepost.tasks.task_states import TaskInput, TaskState
from gatepost.tasks.task_table import change_task
from gatepost.tasks.task_tokens import (
    IssuedTaskToken,
    authenticate_task_token,
    issue_task_token,
    list_task_tokens,
    renew_task_token,
    revoke_task_tokens,
    revoke_token,
)
from tests.tasks.harness import HubHarness, has_live_token

HOUR = 3_600_000


def issue(hub: HubHarness, task: str) -> IssuedTaskToken:
    capabilities = ("read_code", "use_tools")
    return hub.run(lambda tx: issue_task_token(tx, hub.clock, "reviewer", task, capabilities, HOUR))


def test_a_token_is_for_one_agent_and_one_task(hub: HubHarness) -> None:
    task = hub.add_task(state=TaskState.RUNNING)
    issued = issue(hub, task)
    found = hub.run(lambda tx: authenticate_task_token(tx, issued.text))
    assert found == issued.token
    assert (found.agent_name, found.task_id) == ("reviewer", task)
    assert found.capabilities == ("read_code", "use_tools")
    assert found.expiry == found.issued + HOUR


def test_only_the_hash_of_a_token_is_stored_and_its_text_is_not_printed(hub: HubHarness) -> None:
    issued = issue(hub, hub.add_task())
    secret = issued.text.rpartition(".")[2]
    stored = hub.connection.execute("SELECT * FROM task_token").fetchall()
    assert secret not in str(stored) and secret not in repr(issued)


@pytest.mark.parametrize("text", ["", "gpt1", "gps1.0011223344556677." + "a" * 43, "x" * 10_000])
def test_other_texts_are_no_tokens(hub: HubHarness, text: str) -> None:
    issue(hub, hub.add_task())
    with pytest.raises(InvalidToken):
        hub.run(lambda tx: authenticate_task_token(tx, text))


def test_a_token_with_another_secret_is_not_known(hub: HubHarness) -> None:
    issued = issue(hub, hub.add_task())
    forged = issued.text[:-5] + ("AAAAA" if not issued.text.endswith("AAAAA") else "BBBBB")
    with pytest.raises(InvalidToken):
        hub.run(lambda tx: authenticate_task_token(tx, forged))


def test_a_token_expires_and_is_pruned_later(hub: HubHarness) -> None:
    issued = issue(hub, hub.add_task())
    hub.clock.advance(HOUR)
    with pytest.raises(ExpiredToken):
        hub.run(lambda tx: authenticate_task_token(tx, issued.text))
    assert hub.run(list_task_tokens) == []
    issue(hub, hub.add_task())
    assert len(hub.connection.execute("SELECT id FROM task_token").fetchall()) == 1


def test_a_dead_token_is_told_why(hub: HubHarness) -> None:
    task = hub.add_task(state=TaskState.RUNNING)
    issued = issue(hub, task)
    hub.run(lambda tx: claim_session(tx, "s1", task, "reviewer", "process"))

    def refusal() -> str:
        with pytest.raises(Revoked) as refused:
            hub.run(lambda tx: authenticate_task_token(tx, issued.text))
        return refused.value.message

    assert hub.run(lambda tx: revoke_token(tx, issued.token.token_id)) == 1
    assert refusal().startswith("the operator revoked this token; its task goes on")
    hub.run(lambda tx: end_session(tx, "s1", 0, "exited"))
    assert refusal() == "the session of this token has ended"
    hub.clock.advance(1)
    issue(hub, task)
    assert refusal() == "another session works on the task of this token now"
    hub.run(lambda tx: change_task(tx, task, TaskInput.FAIL))
    assert refusal() == "the task of this token has ended"


def test_an_expired_token_is_told_what_still_works(hub: HubHarness) -> None:
    issued = issue(hub, hub.add_task(state=TaskState.RUNNING))
    hub.clock.advance(HOUR)
    with pytest.raises(ExpiredToken, match=r"only a live token .* GATEPOST_RESULT_FILE"):
        hub.run(lambda tx: authenticate_task_token(tx, issued.text))


def test_a_token_can_be_renewed_while_its_task_runs(hub: HubHarness) -> None:
    task = hub.add_task(state=TaskState.RUNNING)
    issued = issue(hub, task)
    hub.clock.advance(HOUR - 1)
    renewed = hub.run(lambda tx: renew_task_token(tx, issued.token, HOUR))
    hub.clock.advance(HOUR - 1)
    assert hub.run(lambda tx: authenticate_task_token(tx, issued.text)) == renewed


def test_a_token_cannot_be_renewed_once_its_task_has_ended(hub: HubHarness) -> None:
    task = hub.add_task(state=TaskState.RUNNING)
    issued = issue(hub, task)
    hub.run(lambda tx: change_task(tx, task, TaskInput.FAIL))
    with pytest.raises(WrongState):
        hub.run(lambda tx: renew_task_token(tx, issued.token, HOUR))


def test_a_revoked_token_is_refused_and_not_listed(hub: HubHarness) -> None:
    task, other = hub.add_task(), hub.add_task()
    issued, kept = issue(hub, task), issue(hub, other)
    hub.run(lambda tx: revoke_task_tokens(tx, task))
    with pytest.raises(Revoked):
        hub.run(lambda tx: authenticate_task_token(tx, issued.text))
    assert hub.run(list_task_tokens) == [kept.token]
    assert not hub.run(lambda tx: has_live_token(tx, task))
    assert hub.run(lambda tx: has_live_token(tx, other))
