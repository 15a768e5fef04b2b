"""The policy of the hub: three questions, decided by rules in Cedar.

A policy text is parsed and validated against the schema as a whole: if any rule is wrong, none
of them is used. Decisions are cached, because a decision takes some 50 µs and most of them repeat.
"""

import re
from collections.abc import Iterable
from functools import cached_property
from importlib.util import find_spec
from typing import Any, Literal

import msgspec
from msgspec import Struct

from gatepost.errors import ExtraMissing, InvalidPolicy, PolicyDenied
from gatepost.tasks.policy_language import DEFAULT_POLICY, SCHEMA

PolicyAction = Literal["assignTask", "sendMessage", "useCapability"]

MAX_POLICY_BYTES = 256 * 1024
_CACHED_DECISIONS = 10_000
_DENY_EVERYTHING = '@id("policy-file-is-broken") forbid (principal, action, resource);'
_NOISE = re.compile(r'//[^\n]*|"(?:[^"\\]|\\.)*"')
_RULE_START = re.compile(r"\b(?:permit|forbid)\s*\(")

_ADVICE = (
    "the hub's rules are decided by Cedar, which is not installed: pip install 'gatepost[hub]',"
    " then restart the gateway"
)


class PolicyAgent(Struct, frozen=True):
    """An agent as policies see it. `gateway` is empty for an agent of this gateway."""

    name: str
    gateway: str = ""
    registered: bool = False
    hardened: bool = False
    capabilities: tuple[str, ...] = ()


class Operator(Struct, frozen=True):
    """The operator of this gateway, as policies see it."""

    name: str = "operator"


class Hub(Struct, frozen=True):
    """The hub as the recipient of a message."""

    name: str = "hub"


class Capability(Struct, frozen=True):
    name: str


PolicyEntity = PolicyAgent | Operator | Hub | Capability
PolicyPrincipal = PolicyAgent | Operator


class PolicyResult(Struct, frozen=True):
    """A decision. `rules` are the rules that made it; empty if no rule permits."""

    allowed: bool
    reason: str | None = None
    rules: tuple[str, ...] = ()

    def require_allowed(self) -> None:
        if not self.allowed:
            raise PolicyDenied(self.reason or "the policy does not permit this")


class Policy:
    """The rules in effect. A refused text leaves them unchanged."""

    def __init__(self, text: str = DEFAULT_POLICY) -> None:
        self._rules: _ActiveRules | _MissingRules
        if text == DEFAULT_POLICY and is_cedar_installed():
            self._rules = _ActiveRules(text)
        else:
            self.replace_rules(text)

    def replace_rules(self, text: str) -> None:
        """Put other rules into effect; InvalidPolicy, with all problems, if any rule is wrong."""
        if not is_cedar_installed():
            self._rules = _MissingRules()
            return
        problems = find_policy_problems(text)
        if problems:
            raise InvalidPolicy("; ".join(problems))
        # Replaced as one: decisions are made in several threads.
        self._rules = _ActiveRules(text)

    def deny_everything(self) -> None:
        """Fail closed: the operator's rules exist, but cannot be read."""
        self.replace_rules(_DENY_EVERYTHING)

    # -- the three questions

    def evaluate_task_assignment(
        self, requester: PolicyPrincipal, agent: PolicyAgent, *, description: str, task_type: str
    ) -> PolicyResult:
        context = {"described": bool(description.strip()), "taskType": task_type}
        decided = self.decide("assignTask", requester, agent, context)
        return _explain(
            decided, agent, "" if context["described"] else "the task has no description"
        )

    def evaluate_message(
        self, sender: PolicyPrincipal, recipient: PolicyAgent | Hub, type: str
    ) -> PolicyResult:
        decided = self.decide("sendMessage", sender, recipient, {"type": type})
        return _explain(decided, recipient, "" if type else "the message has no type")

    def evaluate_capability(
        self, user: PolicyPrincipal, capability: str, granted: Iterable[str]
    ) -> PolicyResult:
        """Whether a token with the capabilities `granted` may use one."""
        context = {"granted": capability in granted}
        return self.decide("useCapability", user, Capability(capability), context)

    # -- decisions

    def decide(
        self,
        action: PolicyAction,
        principal: PolicyPrincipal,
        resource: PolicyEntity,
        context: dict[str, Any],
    ) -> PolicyResult:
        rules = self._rules
        key = (action, principal, resource, *context.values())
        known = rules.decisions.get(key)
        if known is not None:
            return known
        result = rules.evaluate(action, principal, resource, context)
        if len(rules.decisions) >= _CACHED_DECISIONS:
            rules.decisions.clear()
        rules.decisions[key] = result
        return result


def is_cedar_installed() -> bool:
    return find_spec("cedarpy") is not None


class _MissingRules:
    """Without the extra nothing is permitted: there is nobody to ask."""

    def __init__(self) -> None:
        self.decisions: dict[tuple[Any, ...], PolicyResult] = {}

    def evaluate(self, *_: object) -> PolicyResult:
        return PolicyResult(False, _ADVICE)


class _ActiveRules:
    """Rules without problems, and the decisions they made.

    The first decision parses them: a gateway that makes none does without Cedar's 9 MB.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self.decisions: dict[tuple[Any, ...], PolicyResult] = {}

    @cached_property
    def _rules(self) -> Any:
        import cedarpy

        return cedarpy.PolicySet.from_str(self._text)

    @cached_property
    def _lines(self) -> list[int]:
        """The lines in which the rules start."""
        return rule_lines(self._text)

    def evaluate(
        self,
        action: PolicyAction,
        principal: PolicyPrincipal,
        resource: PolicyEntity,
        context: dict[str, Any],
    ) -> PolicyResult:
        import cedarpy

        request = {
            "principal": _entity_name(principal),
            "action": f'Action::"{action}"',
            "resource": _entity_name(resource),
            "context": context,
        }
        answer = cedarpy.is_authorized(
            request, self._rules, _describe_entities(principal, resource)
        )
        rules = tuple(
            self._name_rule(id, answer.diagnostics.id_annotations_by_reason)
            for id in sorted(answer.diagnostics.reasons)
        )
        if answer.allowed:
            return PolicyResult(True, None, rules)
        if answer.diagnostics.errors:
            return PolicyResult(False, f"the policy failed: {answer.diagnostics.errors[0]}", rules)
        by = f"the rule {', '.join(rules)} forbids" if rules else "no rule permits"
        subject = f"{_show_entity(principal)} to {action} {_show_entity(resource)}"
        return PolicyResult(False, f"{by} {subject}", rules)

    def _name_rule(self, id: str, names: dict[str, str]) -> str:
        """The `@id` of a rule, or else the line it starts in."""
        if names.get(id):
            return names[id]
        number = int(id.removeprefix("policy"))
        return f"in line {self._lines[number]}" if number < len(self._lines) else id


def find_policy_problems(text: str) -> list[str]:
    """All problems of a policy text; empty if it can be used."""
    if not is_cedar_installed():
        raise ExtraMissing(_ADVICE)
    import cedarpy

    if len(text.encode()) > MAX_POLICY_BYTES:
        return [f"the policy has more than {MAX_POLICY_BYTES} bytes"]
    try:
        rules = cedarpy.PolicySet.from_str(text)
    except ValueError as error:
        return [f"{_place_unusable_rule(text)}: it is not Cedar: {error}"]
    if rules.templates():
        place = _place_unusable_rule(text)
        return [f"{place}: templates are not supported: every rule must be complete"]
    lines = rule_lines(text)
    problems = cedarpy.validate_policies(text, SCHEMA).errors
    return [_place_problem(each.policy_id, each.error, lines) for each in problems]


def _place_unusable_rule(text: str) -> str:
    """The line of the first unreadable rule or template, which Cedar does not report."""
    import cedarpy

    for line, rule in zip(rule_lines(text), _split_rules(text), strict=True):
        try:
            if not cedarpy.PolicySet.from_str(rule).templates():
                continue
        except ValueError:
            pass
        return f"line {line}"
    return "line 1"


def _split_rules(text: str) -> list[str]:
    """Each rule without its annotations, from its first word through its semicolon, if any."""
    blanked = _blank_noise(text)
    starts = [found.start() for found in _RULE_START.finditer(blanked)]
    ends = [*starts[1:], len(text)]
    return [
        text[start : blanked.rfind(";", start, end) + 1 or end]
        for start, end in zip(starts, ends, strict=True)
    ]


def rule_lines(text: str) -> list[int]:
    """The line in which each rule starts, from 1, in the order of the rules."""
    blanked = _blank_noise(text)
    return [blanked.count("\n", 0, found.start()) + 1 for found in _RULE_START.finditer(blanked)]


def _blank_noise(text: str) -> str:
    """The text with spaces in place of comments and strings."""
    return _NOISE.sub(lambda found: " " * len(found[0]), text)


def _place_problem(id: str, error: str, lines: list[int]) -> str:
    if not id.startswith("policy"):
        return error
    number = int(id.removeprefix("policy"))
    place = f"line {lines[number]}" if number < len(lines) else id
    return f"{place}: {error.removeprefix(f'for policy `{id}`, ')}"


def _explain(decided: PolicyResult, recipient: PolicyAgent | Hub, lack: str) -> PolicyResult:
    """Add the likely reason to a denial without a rule: an unknown recipient, or `lack`."""
    if decided.allowed or decided.rules:
        return decided
    if isinstance(recipient, PolicyAgent) and not recipient.registered:
        lack = f"no agent {recipient.name!r} is known here"
    return PolicyResult(False, f"{decided.reason}: {lack}") if lack else decided


def _entity_name(entity: PolicyEntity) -> str:
    return f"{_entity_type(entity)}::{msgspec.json.encode(entity.name).decode()}"


def _entity_type(entity: PolicyEntity) -> str:
    return "Agent" if isinstance(entity, PolicyAgent) else type(entity).__name__


def _show_entity(entity: PolicyEntity) -> str:
    return f"{_entity_type(entity).lower()} {entity.name!r}"


def _describe_entities(*entities: PolicyEntity) -> str:
    described = {}
    for entity in entities:
        attributes: dict[str, Any] = {}
        if isinstance(entity, PolicyAgent):
            attributes = {
                name: getattr(entity, name)
                for name in ("gateway", "registered", "hardened", "capabilities")
            }
        uid = {"type": _entity_type(entity), "id": entity.name}
        described[_entity_name(entity)] = {"uid": uid, "attrs": attributes, "parents": []}
    return msgspec.json.encode(list(described.values())).decode()
