"""Steps that `gatepost dlq` and `gatepost undelivered` share: list, show, replay and discard.

Both keep messages whose turn did not succeed: dead letters at the gateway of the receiver,
undelivered messages at the gateway of the sender.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, TypeVar

from cyclopts import Parameter
from cyclopts.validators import Number
from msgspec import Struct

from gatepost.cli import output
from gatepost.cli.gateway_api import quote_segment
from gatepost.cli.options import GatewayOptions
from gatepost.cli.problems import CommandProblem, ExitCode, usage_problem
from gatepost.wire.operations import Count, Failure

Letter = TypeVar("Letter")

PageLimit = Annotated[int, Parameter(validator=Number(gte=1, lte=1000))]

_LABEL_WIDTH = 10


class LetterBox(Struct, frozen=True):
    """Letters of one kind at a gateway; those of one agent, if `owner` names it."""

    path: str
    noun: str
    owner: str = ""

    def letter_path(self, id: str) -> str:
        return f"{self.path}/{quote_segment(id)}"

    def count_text(self, count: int) -> str:
        return f"{output.format_count(count, self.noun)}{self._owner_text()}"

    def choice_text(self, ids: Sequence[str], *, every: bool) -> str:
        if ids:
            return self.count_text(len(ids))
        return f"{'all' if every else 'the matching'} {self.noun}s{self._owner_text()}"

    def _owner_text(self) -> str:
        return f" of {self.owner}" if self.owner else ""


def print_page(
    options: GatewayOptions,
    found: Sequence[Letter],
    limit: int,
    letter_id: Callable[[Letter], str],
    print_letters: Callable[[Sequence[Letter]], None],
    none_text: str,
) -> None:
    """Print one page of letters; `none_text` if there is none."""
    output.print_result(
        options,
        {"messages": found},
        lambda: print_letters(found) if found else output.print_line(none_text),
    )
    if len(found) == limit:
        output.print_hint(f"There may be more: --after {letter_id(found[-1])}")


def print_letter(title: str, facts: Mapping[str, str], payload: str) -> None:
    """Print one letter: its title, the facts that have a value, and its payload."""
    output.print_line(title, "bold")
    for label, text in facts.items():
        if text:
            output.print_line(f"{label:<{_LABEL_WIDTH}}{text}")
    output.print_line("")
    output.print_line(payload)


def require_choice(chosen: bool, every: bool, ways: str) -> None:
    """Require exactly one choice of letters: one of the `ways`, or `--all`."""
    if chosen == every:
        raise usage_problem(f"choose {ways}, or all with --all")


def check_replayed(replayed: int, refused: Sequence[Failure], refusal: str, none_text: str) -> int:
    """The exit code of a replay; raises if a letter was refused or none was found."""
    if refused:
        raise CommandProblem(refused[0].code, f"{refusal}: {refused[0].message}")
    if not replayed:
        raise CommandProblem("unknown_message", none_text)
    return ExitCode.OK


def discard_letters(
    box: LetterBox, wanted: object, choice: str, yes: bool, options: GatewayOptions
) -> int:
    """Discard the `wanted` letters after a confirmation that names them as `choice`."""
    if not output.confirm_action(f"Discard {choice} for good?", yes, options):
        return ExitCode.FAILED
    with options.find_gateway() as gateway:
        count = gateway.post(f"{box.path}/discard", wanted, Count).count
    text = f"{box.count_text(count)} discarded"
    output.print_result(options, {"count": count}, lambda: output.print_line(text))
    return ExitCode.OK
