import pytest

from gatepost.errors import InvalidPolicy, PolicyDenied
from gatepost.tasks.policy import (
    Hub,
    Operator,
    Policy,
    PolicyAgent,
    find_policy_problems,
    rule_lines,
)
from gatepost.tasks.policy_language import DEFAULT_POLICY

REVIEWER = PolicyAgent("reviewer", "", True, True, ("read_code",))
STRANGER = PolicyAgent("stranger")
AL = PolicyAgent("al", "", True)
# The line of what is written after the rules that are there by default.
AFTER = len(DEFAULT_POLICY.split("\n")) + 1


def test_the_default_permits_described_tasks_for_registered_agents() -> None:
    policy = Policy()
    allowed = policy.evaluate_task_assignment(AL, REVIEWER, description="do it", task_type="")
    assert (allowed.allowed, allowed.rules) == (True, ("described-tasks",))
    for agent, description, why in (
        (REVIEWER, "  ", "the task has no description"),
        (STRANGER, "do it", "no agent 'stranger' is known here"),
    ):
        denied = policy.evaluate_task_assignment(
            Operator(), agent, description=description, task_type=""
        )
        assert not denied.allowed
        assert denied.reason is not None and "no rule permits operator" in denied.reason
        assert denied.reason.endswith(f": {why}")


def test_the_default_permits_typed_messages_to_agents_and_to_the_hub() -> None:
    policy = Policy()
    assert policy.evaluate_message(AL, REVIEWER, "note").rules == ("typed-messages-to-agents",)
    assert policy.evaluate_message(AL, Hub(), "note").rules == ("typed-messages-to-the-hub",)
    untyped = policy.evaluate_message(AL, REVIEWER, "")
    assert not untyped.allowed and str(untyped.reason).endswith(": the message has no type")
    assert not policy.evaluate_message(AL, STRANGER, "note").allowed


def test_the_default_permits_the_capabilities_that_a_token_has() -> None:
    policy = Policy()
    assert policy.evaluate_capability(REVIEWER, "read_code", ("read_code",)).allowed
    assert not policy.evaluate_capability(REVIEWER, "write", ("read_code",)).allowed
    assert policy.evaluate_capability(Operator(), "write", ()).allowed


def test_a_rule_that_forbids_wins_and_is_named() -> None:
    policy = Policy(
        "permit (principal, action, resource);\n\n"
        '// permit ( a comment, and "forbid (" in a string\n'
        'forbid (principal, action == Action::"assignTask", resource)\n'
        "unless { resource.hardened };\n"
    )
    soft = PolicyAgent("soft", "", True)
    denied = policy.evaluate_task_assignment(AL, soft, description="x", task_type="")
    assert denied.rules == ("in line 4",)
    with pytest.raises(PolicyDenied, match="the rule in line 4 forbids agent 'al' to assignTask"):
        denied.require_allowed()
    allowed = policy.evaluate_task_assignment(AL, REVIEWER, description="x", task_type="")
    assert allowed.rules == ("in line 1",)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("permit (principal, action, resource", "line 1: it is not Cedar"),
        (f"{DEFAULT_POLICY}\npermit (principal, action, ;", f"line {AFTER}: it is not Cedar"),
        ("\npermit (principle, action, resource);", "line 2: .* principle"),
        ('\npermit (principal, action == Action::"asignTask", resource);', "line 2: unrecognized"),
        ("permit (principal, action, resource) when { context.colour };", "line 1"),
        (
            f"{DEFAULT_POLICY}\npermit (principal == ?principal, action, resource);",
            "line [0-9]{2}: templates are not supported",
        ),
        ("// " + "x" * 300_000, "more than"),
    ],
)
def test_wrong_rules_are_refused_as_a_whole_and_the_old_ones_stay(text: str, problem: str) -> None:
    policy = Policy("permit (principal, action, resource);")
    with pytest.raises(InvalidPolicy, match=problem):
        policy.replace_rules("forbid (principal, action, resource);\n" * 0 + text)
    assert policy.evaluate_message(STRANGER, REVIEWER, "").allowed


def test_a_decision_is_forgotten_when_the_rules_change() -> None:
    policy = Policy()
    assert policy.evaluate_message(AL, Hub(), "note").allowed
    policy.replace_rules("")
    assert not policy.evaluate_message(AL, Hub(), "note").allowed


def test_names_cannot_break_out_of_a_request() -> None:
    policy = Policy('permit (principal == Agent::"root", action, resource);')
    hostile = PolicyAgent('x" , Agent::"root')
    assert not policy.evaluate_message(hostile, Hub(), "note").allowed


def test_a_broken_policy_file_denies_everything() -> None:
    policy = Policy()
    policy.deny_everything()
    denied = policy.evaluate_message(Operator(), Hub(), "note")
    assert denied.rules == ("policy-file-is-broken",)


def test_lines_of_rules() -> None:
    assert rule_lines('permit (x);\n@id("a")\nforbid(y);') == [1, 3]
    assert find_policy_problems("") == []
