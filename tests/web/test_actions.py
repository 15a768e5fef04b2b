"""Actions: the call of the API, and the command that does the same."""

import msgspec
import pytest

from gatepost.errors import InvalidRequest
from gatepost.web.actions import ACTIONS, quote_argument


def plan(name: str, **given: str) -> tuple[str, str, object]:
    call = ACTIONS[name].plan(given)
    body = msgspec.json.decode(call.body) if call.body else None
    return call.command, f"{call.method} {call.path}", body


def test_dead_letters_are_replayed_one_by_one_and_in_bulk() -> None:
    path = "POST /v1/mailboxes/bo/dead-letters/replay"
    assert plan("replay", mailbox="bo", id="m1") == (
        "gatepost dlq replay bo m1",
        path,
        {"msg_ids": ["m1"], "replayed": False},
    )
    assert plan("replay", mailbox="bo", sender="an") == (
        "gatepost dlq replay bo --sender an",
        path,
        {"sender": "an", "replayed": False},
    )
    assert plan("replay", mailbox="bo")[0] == "gatepost dlq replay bo --all"


def test_a_message_to_all_is_a_broadcast() -> None:
    command, _, body = plan("send", agent="*", text="hello all")
    assert command == "gatepost send --broadcast 'hello all' --from cli"
    assert body == {"from_agent": "cli", "payload": "hello all", "to_agents": "*"}


def test_an_action_that_lacks_its_subject_does_nothing() -> None:
    for name in ("replay", "discard", "give-up", "cancel-task", "revoke", "purge", "send"):
        with pytest.raises(InvalidRequest):
            plan(name)


@pytest.mark.parametrize("text", ["$(reboot)", "a'b", "a;b", "-x y", ""])
def test_a_command_that_is_copied_runs_nothing_else(text: str) -> None:
    import shlex

    assert shlex.split(quote_argument(text)) == [text]
