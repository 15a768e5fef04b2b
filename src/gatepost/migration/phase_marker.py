"""The phases of a migration, the commands that lead from one to the next, and the marker file.

Phase one, `importing`: every undelivered item of the legacy document is sent to the gateway, once,
however often the import is repeated. Agents still work on the legacy document. Phase two,
`dual-write`: messages go through the gateway and are written to the legacy document too, so that
agents can move one by one, and back. Phase three, `cut-over`: the last import is proved complete,
and nothing is written to the legacy document from then on.

- A phase is never left backwards. An import during dual-write stays in dual-write.
- Phase two can be left out, and so can a separate phase one: a cut-over imports before it proves.
- Cut-over is final: only another cut-over is possible after it.
- An import and a cut-over write the marker when their work is done: one that was interrupted is
  repeated, which the migration's ledger makes safe. Dual-write writes it before the first message,
  so no message is mirrored in an earlier phase.
- A state directory records one migration, to one gateway.
"""

from enum import StrEnum

import msgspec
from msgspec import Struct

from gatepost.errors import ConfigError, WrongState
from gatepost.migration.import_summary import ImportCounts
from gatepost.migration.migration_files import MigrationFolder, replace_file


class MigrationPhase(StrEnum):
    IMPORTING = "importing"
    DUAL_WRITE = "dual-write"
    CUT_OVER = "cut-over"


class MigrationCommand(StrEnum):
    IMPORT = "import"
    DUAL_WRITE = "dual-write"
    CUT_OVER = "cut-over"


# A command that is not in the table is refused. None is the state before the first command.
TRANSITIONS: dict[tuple[MigrationPhase | None, MigrationCommand], MigrationPhase] = {
    (None, MigrationCommand.IMPORT): MigrationPhase.IMPORTING,
    (None, MigrationCommand.DUAL_WRITE): MigrationPhase.DUAL_WRITE,
    (None, MigrationCommand.CUT_OVER): MigrationPhase.CUT_OVER,
    (MigrationPhase.IMPORTING, MigrationCommand.IMPORT): MigrationPhase.IMPORTING,
    (MigrationPhase.IMPORTING, MigrationCommand.DUAL_WRITE): MigrationPhase.DUAL_WRITE,
    (MigrationPhase.IMPORTING, MigrationCommand.CUT_OVER): MigrationPhase.CUT_OVER,
    (MigrationPhase.DUAL_WRITE, MigrationCommand.IMPORT): MigrationPhase.DUAL_WRITE,
    (MigrationPhase.DUAL_WRITE, MigrationCommand.DUAL_WRITE): MigrationPhase.DUAL_WRITE,
    (MigrationPhase.DUAL_WRITE, MigrationCommand.CUT_OVER): MigrationPhase.CUT_OVER,
    (MigrationPhase.CUT_OVER, MigrationCommand.CUT_OVER): MigrationPhase.CUT_OVER,
}


class PhaseMarker(Struct, frozen=True, omit_defaults=True):
    """`migration.json`. `mirror` is the legacy file that dual-write wrote to."""

    phase: MigrationPhase
    node_id: str
    at: int
    counts: ImportCounts | None = None
    mirror: str | None = None


def load_marker(folder: MigrationFolder) -> PhaseMarker | None:
    try:
        return msgspec.json.decode(folder.marker.read_bytes(), type=PhaseMarker)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{folder.marker} is damaged: {error}") from None


def check_transition(
    marker: PhaseMarker | None, command: MigrationCommand, node_id: str
) -> MigrationPhase:
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


def enter_phase(
    folder: MigrationFolder,
    command: MigrationCommand,
    node_id: str,
    now: int,
    *,
    counts: ImportCounts | None = None,
    mirror: str | None = None,
) -> PhaseMarker:
    """Write the marker after a command. Counts and mirror keep their value unless given."""
    before = load_marker(folder)
    phase = check_transition(before, command, node_id)
    if before is not None:
        counts, mirror = counts or before.counts, mirror or before.mirror
    marker = PhaseMarker(phase, node_id, now, counts, mirror)
    replace_file(folder.marker, msgspec.json.encode(marker) + b"\n")
    return marker
