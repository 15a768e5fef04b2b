"""`gatepost capability`: publishes what agents can do for others, and shows how that fares."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Raw, Struct, field

from gatepost.cli import output
from gatepost.cli.gateway_api import quote_segment
from gatepost.cli.options import DEFAULT_OPTIONS, GatewayOptions
from gatepost.cli.problems import usage_problem
from gatepost.durations import format_duration
from gatepost.wire.capabilities import CapabilityHealth, CapabilityView

_PATH = "/v1/capabilities"
_COLUMNS = ("Capability", "Version", "Owner", "Eligible", "ETA", "Status")
_INSTALL_COLUMNS = ("Agent", "Version", "Skill", "Since", "Error")


class _CapabilityFile(Struct):
    """The one field of the file that the command itself needs, in both spellings."""

    capability_id: str = ""
    capability_id_camel: str = field(default="", name="capabilityId")

    def __post_init__(self) -> None:
        if bool(self.capability_id) == bool(self.capability_id_camel):
            raise ValueError("it needs one `capability_id`")

    @property
    def id(self) -> str:
        return self.capability_id or self.capability_id_camel


def publish_capability(file: Path, /, *, options: GatewayOptions = DEFAULT_OPTIONS) -> None:
    """Publish a capability of an agent of this gateway.

    The file describes it in JSON: `capability_id`, `name`, `version`,
    `owner_agent_id`, `delegation_skill` and `executor_skill` (each with `ref` and
    `version`), `default_eta_seconds`, and a `contract` with JSON Schemas for
    `input` and `output`; optionally `progress_seconds`, `max_attempts`, `escalation`,
    `eligible_agent_ids` and `status`. camelCase and the names of the catalog, such as
    `executorSkillRef`, do too. All other agents are asked to install the
    delegation skill.

    For example:

      gatepost capability publish review.json

    Parameters
    ----------
    file
        The file that describes the capability.
    """
    try:
        content = file.read_bytes()
        id = msgspec.json.decode(content, type=_CapabilityFile).id
    except OSError as error:
        raise usage_problem(f"{file} cannot be read: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise usage_problem(f"{file} describes no capability: {error}") from None
    with options.find_gateway() as gateway:
        shown = gateway.put(f"{_PATH}/{quote_segment(id)}", CapabilityView, Raw(content))
    text = f"{shown.capability_id} {shown.version} is published for {shown.owner_agent_id}"
    if shown.note:
        text = f"{text}\n{shown.note}"
    output.print_result(options, shown, lambda: output.print_line(text))


def unpublish_capability(capability: str, /, *, options: GatewayOptions = DEFAULT_OPTIONS) -> None:
    """Withdraw a capability, so that no further task is routed by it.

    For example:

      gatepost capability unpublish review

    Parameters
    ----------
    capability
        The id of the capability.
    """
    with options.find_gateway() as gateway:
        shown = gateway.delete(f"{_PATH}/{quote_segment(capability)}", CapabilityView)
    text = f"{shown.capability_id} is withdrawn"
    output.print_result(options, shown, lambda: output.print_line(text))


def list_capabilities(*, options: GatewayOptions = DEFAULT_OPTIONS) -> None:
    """List every capability of the room.

    For example:

      gatepost capability list
    """
    with options.find_gateway() as gateway:
        found = gateway.get(_PATH, list[CapabilityView])
    output.print_result(options, found, lambda: _print_list(found))


def _print_list(found: Sequence[CapabilityView]) -> None:
    if not found:
        output.print_line("no capability is published")
        return
    rows = [
        (
            each.capability_id,
            each.version,
            each.owner_agent_id,
            ", ".join(each.eligible_agent_ids),
            format_duration(each.default_eta_seconds),
            each.status,
        )
        for each in found
    ]
    output.print_table(_COLUMNS, rows)


def show_health(capability: str, /, *, options: GatewayOptions = DEFAULT_OPTIONS) -> None:
    """Show the health of a capability: its tasks, its skill at each agent, its reviews.

    For example:

      gatepost capability health review

    Parameters
    ----------
    capability
        The id of the capability.
    """
    with options.find_gateway() as gateway:
        path = f"{_PATH}/{quote_segment(capability)}/health"
        health = gateway.get(path, CapabilityHealth)
    output.print_result(options, health, lambda: _print_health(health))


def _print_health(health: CapabilityHealth) -> None:
    shown = health.capability
    head = f"{shown.capability_id} {shown.version} of {shown.owner_agent_id}, {shown.status}"
    output.print_line(head, "bold")
    counts = ", ".join(f"{count} {state}" for state, count in sorted(health.tasks.items()))
    output.print_line(f"  tasks requested here: {counts or 'none'}")
    output.print_line(f"  open reviews: {health.open_reviews}")
    output.print_line(f"  delegation skill: {shown.delegation_skill}")
    output.print_line(f"  executor skill: {shown.executor_skill}")
    if health.installs:
        rows = [
            (
                each.agent,
                each.version,
                each.status,
                "" if each.at is None else output.format_ago(each.at),
                each.error or "",
            )
            for each in health.installs
        ]
        output.print_table(_INSTALL_COLUMNS, rows)
