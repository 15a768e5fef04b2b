"""`gatepost policy`: checks, tests and explains the hub's policy, without a gateway."""

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import Parameter
from msgspec import Struct

from gatepost.cli import output
from gatepost.cli.options import DEFAULT_OUTPUT, OutputOptions
from gatepost.cli.problems import CommandProblem, ExitCode, usage_problem
from gatepost.cli.settings import load_settings
from gatepost.tasks.policy import (
    Capability,
    Hub,
    Operator,
    Policy,
    PolicyAgent,
    PolicyEntity,
    PolicyPrincipal,
    PolicyResult,
    find_policy_problems,
    rule_lines,
)
from gatepost.tasks.policy_language import DEFAULT_POLICY
from gatepost.tasks.registry import AgentRegistry

StateDirOption = Annotated[
    Path | None, Parameter(help="State directory of the gateway. Default: $GATEPOST_HOME.")
]
PolicyFile = Annotated[
    Path | None, Parameter(help="File with rules. Default: the one of the state directory.")
]
ActionName = Literal["assignTask", "sendMessage", "useCapability"]

_NO_FILE = "the built-in rules"
_DEFAULT_CONTEXT: dict[str, dict[str, Any]] = {
    "assignTask": {"described": True, "taskType": ""},
    "sendMessage": {"type": "message"},
    "useCapability": {"granted": False},
}


class PolicyCase(Struct, forbid_unknown_fields=True):
    """One question and its expected answer. `rule` is the rule that has to decide it."""

    principal: str
    action: ActionName
    resource: str
    expect: Literal["allow", "deny"]
    context: dict[str, Any] = {}
    rule: str | None = None
    name: str = ""


class CheckedPolicy(Struct):
    file: str
    rules: int
    problems: list[str]


class ExplainedDecision(Struct):
    allowed: bool
    rules: tuple[str, ...]
    reason: str | None


class TestedPolicy(Struct):
    passed: int
    failures: list[str]


def check_policy(
    file: PolicyFile = None,
    /,
    *,
    state_dir: StateDirOption = None,
    options: OutputOptions = DEFAULT_OUTPUT,
) -> int:
    """Check the rules of a policy: their syntax, and every name in them.

    For example:

      gatepost policy check
      gatepost policy check new-rules.cedar
    """
    name, text = _read_policy(file, state_dir)
    problems = find_policy_problems(text)
    checked = CheckedPolicy(name, len(rule_lines(text)), problems)

    def print_check() -> None:
        for problem in problems:
            output.print_line(f"{name}: {problem}")
        if not problems:
            output.print_line(f"{name}: {output.format_count(checked.rules, 'rule')}, no problem")

    output.print_result(options, checked, print_check)
    return ExitCode.FAILED if problems else ExitCode.OK


def explain_decision(
    principal: str,
    action: ActionName,
    resource: str,
    /,
    *,
    context: Annotated[list[str] | None, Parameter(negative=())] = None,
    file: PolicyFile = None,
    state_dir: StateDirOption = None,
    options: OutputOptions = DEFAULT_OUTPUT,
) -> int:
    """Show a decision of the policy, and the rule that makes it.

    Principals are `operator` and names of agents, as `agent` or `agent@gateway`. Resources are
    `hub` and names of agents, or of capabilities for useCapability. Agents count as registered,
    with the capabilities of their files. Exits with 1 if the action is denied.

    For example:

      gatepost policy explain operator assignTask code-reviewer
      gatepost policy explain al@lab-2 sendMessage hub --context type=report

    Parameters
    ----------
    principal
        The caller.
    action
        The action.
    resource
        The agent, hub or capability that the action concerns.
    context
        A value of the request's context, as NAME=VALUE. Repeat the option for several.
    """
    policy, registry = _load_policy(file, state_dir), _load_registry(state_dir)
    given = dict(_parse_context(each) for each in context or ())
    case = PolicyCase(principal, action, resource, "allow", given)
    result = _decide(policy, registry, case)
    document = ExplainedDecision(result.allowed, result.rules, result.reason)
    output.print_result(options, document, lambda: _print_decision(result))
    return ExitCode.OK if result.allowed else ExitCode.FAILED


def test_policy(
    cases: Path,
    /,
    *,
    file: PolicyFile = None,
    state_dir: StateDirOption = None,
    options: OutputOptions = DEFAULT_OUTPUT,
) -> int:
    """Ask a policy the questions of a file, and compare its answers with the expected ones.

    The file is a JSON list of objects with `principal`, `action`, `resource`,
    `expect` (allow or deny), and optionally `context`, `rule` and `name`.

    For example:

      gatepost policy test cases.json --file new-rules.cedar

    Parameters
    ----------
    cases
        The file with the questions.
    """
    policy, registry = _load_policy(file, state_dir), _load_registry(state_dir)
    asked = _read_cases(cases)
    failures = [
        failure
        for number, case in enumerate(asked, 1)
        if (failure := _check_case(policy, registry, case, number)) is not None
    ]
    document = TestedPolicy(len(asked) - len(failures), failures)

    def print_outcome() -> None:
        for failure in failures:
            output.print_line(failure)
        output.print_line(f"{document.passed} of {output.format_count(len(asked), 'case')} passed")

    output.print_result(options, document, print_outcome)
    return ExitCode.FAILED if failures else ExitCode.OK


# -- questions


def _check_case(
    policy: Policy, registry: AgentRegistry, case: PolicyCase, number: int
) -> str | None:
    result = _decide(policy, registry, case)
    label = case.name or f"case {number}"
    answer = "allow" if result.allowed else "deny"
    if answer != case.expect:
        by = ", ".join(result.rules) or "no rule"
        return f"{label}: expected {case.expect}, and got {answer} by {by}"
    if case.rule is not None and case.rule not in result.rules:
        return (
            f"{label}: expected the rule {case.rule}, and got {', '.join(result.rules) or 'none'}"
        )
    return None


def _decide(policy: Policy, registry: AgentRegistry, case: PolicyCase) -> PolicyResult:
    principal: PolicyPrincipal = Operator()
    if case.principal != "operator":
        principal = _find_agent(registry, case.principal)
    context = _build_context(case, principal)
    return policy.decide(case.action, principal, _find_resource(registry, case), context)


def _build_context(case: PolicyCase, principal: PolicyPrincipal) -> dict[str, Any]:
    """The facts of a question: those that were given, and for all others the usual ones."""
    usual = dict(_DEFAULT_CONTEXT[case.action])
    if case.action == "useCapability" and isinstance(principal, PolicyAgent):
        usual["granted"] = case.resource in principal.capabilities
    for name, value in case.context.items():
        if name not in usual:
            raise usage_problem(f"{case.action} has no context {name}; it has {', '.join(usual)}")
        if type(value) is not type(usual[name]):
            kind = "true or false" if isinstance(usual[name], bool) else "a text"
            raise usage_problem(f"the context {name} of {case.action} is {kind}")
    return usual | case.context


def _find_resource(registry: AgentRegistry, case: PolicyCase) -> PolicyEntity:
    if case.action == "useCapability":
        return Capability(case.resource)
    if case.resource == "hub" and case.action == "sendMessage":
        return Hub()
    return _find_agent(registry, case.resource)


def _find_agent(registry: AgentRegistry, name: str) -> PolicyAgent:
    """An agent from the agents folder, with all its attributes, or another known agent."""
    agent, _, gateway = name.partition("@")
    definition = registry.agents.get(agent)
    if definition is None or gateway:
        return PolicyAgent(agent, gateway, True)
    return PolicyAgent(agent, "", True, definition.hardened, definition.capabilities)


def _parse_context(text: str) -> tuple[str, Any]:
    name, separator, value = text.partition("=")
    if not separator:
        raise usage_problem(f"{text!r} is no fact: give it as NAME=VALUE")
    return name, {"true": True, "false": False}.get(value, value)


def _print_decision(result: PolicyResult) -> None:
    rules = ", ".join(result.rules)
    if result.allowed:
        output.print_line(f"allowed by {rules}")
    else:
        output.print_line(f"denied: {result.reason}")


# -- files


def _load_policy(file: Path | None, state_dir: Path | None) -> Policy:
    name, text = _read_policy(file, state_dir)
    if problems := find_policy_problems(text):
        raise CommandProblem("invalid_policy", f"{name}: {problems[0]}")
    return Policy(text)


def _read_policy(file: Path | None, state_dir: Path | None) -> tuple[str, str]:
    """The name of the policy's file, and its text."""
    path = file
    if path is None:
        settings = load_settings(state_dir)
        path = settings.named_file(settings.hub.policy_file)
        if path is None or not path.exists():
            return _NO_FILE, DEFAULT_POLICY
    try:
        return str(path), path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise usage_problem(f"{path} cannot be read: {error}") from None


def _load_registry(state_dir: Path | None) -> AgentRegistry:
    from gatepost.tasks.service.hub_files import read_definition_files

    settings = load_settings(state_dir)
    folder = settings.named_file(settings.hub.agents_dir)
    registry = AgentRegistry()
    if folder is not None:
        registry.load_files(read_definition_files(folder))
    return registry


def _read_cases(path: Path) -> list[PolicyCase]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[PolicyCase])
    except OSError as error:
        raise usage_problem(f"{path} cannot be read: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise usage_problem(f"{path} holds no cases: {error}") from None
