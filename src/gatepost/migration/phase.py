"""The phase of a migration: three phases, the commands that change them, and the marker file."""

from enum import StrEnum

import msgspec
from msgspec import Struct

from gatepost.errors import ConfigError, WrongState
from gatepost.migration.files import Folder, replace
from gatepost.migration.report import Counts


class Phase(StrEnum):
    IMPORTING = "importing"
    DUAL_WRITE = "dual-write"
    CUT_OVER = "cut-over"


class Command(StrEnum):
    IMPORT = "import"
    DUAL_WRITE = "dual-write"
    CUT_OVER = "cut-over"


# A command that is not in the table is refused. None is the state before the first command.
TRANSITIONS: dict[tuple[Phase | None, Command], Phase] = {
    (None, Command.IMPORT): Phase.IMPORTING,
    (None, Command.DUAL_WRITE): Phase.DUAL_WRITE,
    (None, Command.CUT_OVER): Phase.CUT_OVER,
    (Phase.IMPORTING, Command.IMPORT): Phase.IMPORTING,
    (Phase.IMPORTING, Command.DUAL_WRITE): Phase.DUAL_WRITE,
    (Phase.IMPORTING, Command.CUT_OVER): Phase.CUT_OVER,
    (Phase.DUAL_WRITE, Command.IMPORT): Phase.DUAL_WRITE,
    (Phase.DUAL_WRITE, Command.DUAL_WRITE): Phase.DUAL_WRITE,
    (Phase.DUAL_WRITE, Command.CUT_OVER): Phase.CUT_OVER,
    (Phase.CUT_OVER, Command.CUT_OVER): Phase.CUT_OVER,
}


class Marker(Struct, frozen=True, omit_defaults=True):
    """`migration.json`. `mirror` is the legacy file that dual-write wrote to."""

    phase: Phase
    node_id: str
    at: int
    counts: Counts | None = None
    mirror: str | None = None


def load(folder: Folder) -> Marker | None:
    try:
        return msgspec.json.decode(folder.marker.read_bytes(), type=Marker)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{folder.marker} is damaged: {error}") from None


def allowed(marker: Marker | None, command: Command, node_id: str) -> Phase:
    """Return the phase after a command, or raise WrongState. A ledger belongs to one gateway."""
    if marker is not None and marker.node_id != node_id:
        raise WrongState(
            f"this state directory records a migration to {marker.node_id}, and the gateway is"
            f" {node_id}: name the right one with --state-dir"
        )
    phase = TRANSITIONS.get((None if marker is None else marker.phase, command))
    if phase is None:
        raise WrongState(
            f"the migration was cut over, so {command} is no longer possible:"
            " send through the gateway alone; `gatepost migrate status` shows when it was"
        )
    return phase


def enter(
    folder: Folder,
    command: Command,
    node_id: str,
    now: int,
    *,
    counts: Counts | None = None,
    mirror: str | None = None,
) -> Marker:
    """Write the marker after a command. Counts and mirror keep their value unless given."""
    before = load(folder)
    phase = allowed(before, command, node_id)
    if before is not None:
        counts, mirror = counts or before.counts, mirror or before.mirror
    marker = Marker(phase, node_id, now, counts, mirror)
    replace(folder.marker, msgspec.json.encode(marker) + b"\n")
    return marker
