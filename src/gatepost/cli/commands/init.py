"""`gatepost init`: writes a commented settings file."""

import os
from pathlib import Path

import msgspec

from gatepost import config
from gatepost.cli import output
from gatepost.cli.options import DEFAULT_OUTPUT, Flag, OutputOptions
from gatepost.cli.problems import CommandProblem, usage_problem
from gatepost.files import write_file_atomically
from gatepost.gateway.state_dir import StateDir


def write_settings_file(
    *,
    state_dir: Path | None = None,
    node_id: str | None = None,
    force: Flag = False,
    options: OutputOptions = DEFAULT_OUTPUT,
) -> None:
    """Write a settings file that explains every setting.

    For example:

      gatepost init
      gatepost init --state-dir /srv/gatepost --node-id lab-1

    Parameters
    ----------
    state_dir
        State directory of the gateway. Default: $GATEPOST_HOME, else ~/.gatepost.
    node_id
        The gateway's name. Default: the host name.
    force
        Replace an existing settings file.
    """
    home = (
        config.default_settings_path(os.environ).parent
        if state_dir is None
        else state_dir.absolute()
    )
    file = home / config.FILE_NAME
    text = _settings_text(node_id)
    if file.exists() and not force:
        raise CommandProblem(
            "conflict", f"{file} exists already: edit it, or replace it with --force"
        )
    _write_file(home, file, text)
    document = {"config": str(file), "state_dir": str(home)}
    output.print_result(options, document, lambda: _print_next_step(file, up_command(state_dir)))


def up_command(state_dir: Path | None) -> str:
    return "gatepost up" if state_dir is None else f"gatepost up --state-dir {state_dir}"


def _settings_text(node_id: str | None) -> str:
    text = config.default_toml()
    if node_id is None:
        return text
    try:
        msgspec.convert({"id": node_id}, config.NodeSettings)
    except msgspec.ValidationError as error:
        raise usage_problem(f"node id {node_id!r} cannot be used: {error}") from None
    (default,) = [line for line in text.splitlines() if line.startswith("#id = ")]
    return text.replace(default, f'id = "{node_id}"', 1)


def _write_file(home: Path, file: Path, text: str) -> None:
    try:
        StateDir(home).create_folder()
        write_file_atomically(file, text.encode())
    except OSError as error:
        raise CommandProblem(
            "storage_failed", f"{file} cannot be written: {error.strerror}"
        ) from None


def _print_next_step(file: Path, start: str) -> None:
    output.print_line(f"wrote {file}")
    output.print_line(f"next: check it, then start the gateway with `{start}`")
