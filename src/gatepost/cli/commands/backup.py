"""`gatepost backup` and `gatepost restore`: the whole state of a gateway in one file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gatepost.cli import output
from gatepost.cli.options import DEFAULT_OUTPUT, OutputOptions, YesOption
from gatepost.cli.problems import ExitCode
from gatepost.cli.settings import load_settings

if TYPE_CHECKING:
    from gatepost.gateway.admin.backup import RestoreResult

StateDirOption = Annotated[
    Path | None,
    Parameter(help="State directory of the gateway. Default: $GATEPOST_HOME, else ~/.gatepost."),
]


def back_up_gateway(
    file: Path, /, *, state_dir: StateDirOption = None, options: OutputOptions = DEFAULT_OUTPUT
) -> None:
    """Back up the gateway's state into one file.

    The gateway may keep running. The file holds a consistent copy of the journal, the
    large payloads and the node's key, and the settings, the certificate, the agents, the
    policy and the secrets that are in the state directory: keep it as safe as the keys.

    For example:

      gatepost backup /backups/lab-1.tar

    Parameters
    ----------
    file
        The file to write; it must not exist yet.
    """
    from gatepost.clock import SystemClock
    from gatepost.core.state_dir import StateDir
    from gatepost.gateway.admin.backup import create_backup

    state = StateDir(load_settings(state_dir).node.state_dir)
    made = create_backup(state, file.absolute(), SystemClock())
    size = output.format_size(file.stat().st_size)
    text = f"{file}: node {made.node_id} up to seq {made.last_seq}, {size}"
    output.print_result(options, made, lambda: output.print_line(text))
    if made.missing:
        output.print_hint(
            f"{output.format_count(made.missing, 'payload')} were removed during the backup"
        )


def restore_gateway(
    file: Path,
    /,
    *,
    state_dir: StateDirOption = None,
    yes: YesOption = False,
    options: OutputOptions = DEFAULT_OUTPUT,
) -> int:
    """Restore a stopped gateway from a backup.

    The gateway forgets its actions since the backup, so nothing may run twice:
    waiting mail becomes dead letters, to be released with `gatepost dlq replay`;
    open invites are void; peers give up messages they sent here since. An existing
    journal is moved aside, not removed. Settings and other files of the operator are
    put back where there are none.

    For example:

      gatepost restore /backups/lab-1.tar
      gatepost restore lab-1.tar --state-dir /srv/gatepost --yes

    Parameters
    ----------
    file
        The backup file.
    """
    from gatepost.clock import SystemClock
    from gatepost.gateway.admin.backup import read_manifest
    from gatepost.gateway.admin.backup import restore_backup as put_back

    settings = load_settings(state_dir)
    made = read_manifest(file)
    age = output.format_ago(made.made_at)
    question = f"Restore {settings.node.state_dir} to its state of {age}?"
    if not output.confirm_action(question, yes, options):
        return ExitCode.FAILED
    done = put_back(file, settings, SystemClock())
    output.print_result(options, done, lambda: _print_restored(done))
    return ExitCode.OK


def _print_restored(done: "RestoreResult") -> None:
    output.print_line(f"node {done.node_id} is restored; start the gateway with `gatepost up`")
    if done.settings:
        output.print_line(f"put back: {', '.join(done.settings)}")
    if done.present:
        output.print_line(f"left as they are: {', '.join(done.present)}")
    if done.dead_letters:
        count = output.format_count(done.dead_letters, "message")
        output.print_line(f"{count} that waited may be processed already: see `gatepost dlq list`")
    if done.in_doubt:
        count = output.format_count(done.in_doubt, "message")
        output.print_line(f"{count} in flight: the receiving gateways are asked for their outcome")
    if done.kept_in is not None:
        output.print_line(f"the journal that was here is in {done.kept_in}")
