"""What `gatepost doctor` finds: a fault and what to do about it."""

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

# The areas, in the order in which they are looked at and shown.
CheckName = Literal[
    "settings",
    "state directory",
    "disk",
    "gateway",
    "ports",
    "tls",
    "peers",
    "clock",
    "versions",
    "sessions",
    "pipeline",
    "mcp",
    "hooks",
]

Findings = Iterator["Finding"]


class Finding(Struct, frozen=True):
    """Something that is wrong. `remedy` is a command, or a sentence that says what to do.

    Advice is about what works today and may not tomorrow; it does not make the command fail.
    """

    check: CheckName
    problem: str
    remedy: str
    is_advice: bool = False


class Diagnosis(Struct, frozen=True):
    """All that was found. `skipped`: check → why it could not be made."""

    state_dir: str
    node: str | None
    is_running: bool
    checked: list[CheckName]
    skipped: dict[str, str]
    findings: list[Finding]

    @property
    def faults(self) -> list[Finding]:
        return [each for each in self.findings if not each.is_advice]
