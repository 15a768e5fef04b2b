"""`gatepost backup` and `gatepost restore`: the whole state of a gateway in one file."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

from cyclopts import Parameter

from gatepost.cli import output
from gatepost.cli.options import OUTPUT, Output, Yes
from gatepost.cli.problems import Exit, Problem, usage
from gatepost.config import Settings, default_settings_path
from gatepost.errors import ConfigError, GatepostError

T = TypeVar("T")

StateFolder = Annotated[
    Path | None,
    Parameter(help="State directory of the gateway. Default: $GATEPOST_HOME, else ~/.gatepost."),
]


def backup(file: Path, /, *, state_dir: StateFolder = None, options: Output = OUTPUT) -> None:
    """Back up the gateway's state into one file.

    Parameters
    ----------
    file
        The file to write; it must not exist yet.
    """
    from gatepost.clock import SystemClock
    from gatepost.gateway.admin.backup import create_backup
    from gatepost.gateway.state_dir import StateDir

    state = StateDir(_settings(state_dir).node.state_dir)
    made = _told(lambda: create_backup(state, file.absolute(), SystemClock()))
    size = output.size(file.stat().st_size)
    text = f"{file}: node {made.node_id} up to seq {made.last_seq}, {size}"
    output.show(options, made, lambda: output.say(text))
    if made.missing:
        output.hint(f"{output.plural(made.missing, 'payload')} were removed during the backup")


def restore(
    file: Path,
    /,
    *,
    state_dir: StateFolder = None,
    yes: Yes = False,
    options: Output = OUTPUT,
) -> int:
    """Restore a stopped gateway from a backup.

    Parameters
    ----------
    file
        The backup file.
    """
    from gatepost.clock import SystemClock
    from gatepost.gateway.admin.backup import read_manifest
    from gatepost.gateway.admin.backup import restore_backup as put_back

    settings = _settings(state_dir)
    made = _told(lambda: read_manifest(file))
    age = output.age(made.made_at / 1000)
    question = f"Restore {settings.node.state_dir} to its state of {age} ago?"
    if not output.confirm(question, yes, options):
        return Exit.FAILED
    done = _told(lambda: put_back(file, settings, SystemClock()))
    output.show(options, done, lambda: _say(done.dead_letters, done.in_doubt, done.kept_in))
    return Exit.OK


def _say(dead_letters: int, in_doubt: int, kept_in: str | None) -> None:
    output.say("restored; start the gateway with `gatepost up`")
    if dead_letters:
        count = output.plural(dead_letters, "message")
        output.say(f"{count} that waited may be processed already: see `gatepost dlq list AGENT`")
    if in_doubt:
        count = output.plural(in_doubt, "message")
        output.say(f"{count} in flight: the receiving gateways are asked for their outcome")
    if kept_in is not None:
        output.say(f"the journal that was here is in {kept_in}")


def _settings(state_dir: Path | None) -> Settings:
    env = dict(os.environ)
    if state_dir is not None:
        env |= dict.fromkeys(
            ("GATEPOST_HOME", "GATEPOST_NODE__STATE_DIR"), str(state_dir.absolute())
        )
    file = default_settings_path(env)
    try:
        return Settings.load(file if file.exists() else None, env)
    except ConfigError as error:
        raise usage(error.message) from None


def _told(work: Callable[[], T]) -> T:
    try:
        return work()
    except GatepostError as error:
        raise Problem(error.code, error.message) from None
