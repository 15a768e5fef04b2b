"""`gatepost config`: the settings in effect, whether they can be used, and reading them again."""

import os
from pathlib import Path

from msgspec import Struct

from gatepost import config
from gatepost.cli import output
from gatepost.cli.options import (
    DEFAULT_OPTIONS,
    DEFAULT_OUTPUT,
    Flag,
    GatewayOptions,
    OutputOptions,
)
from gatepost.cli.settings import report_unusable_settings
from gatepost.config.setting_origins import DEFAULT_ORIGIN, SettingOrigin, list_setting_origins
from gatepost.config.settings_schema import encode_schema, settings_schema
from gatepost.config.toml_text import toml_value
from gatepost.wire.gateway_views import SettingsReloaded


class CheckedSettings(Struct):
    """The settings file, if there is one, and how many settings differ from their defaults."""

    file: str | None
    changed: int


def show_settings(
    *,
    all: Flag = False,
    state_dir: Path | None = None,
    options: OutputOptions = DEFAULT_OUTPUT,
) -> None:
    """Show the settings that differ from their defaults, and where each comes from.

    For example:

      gatepost config show
      gatepost config show --all
      gatepost config show --json | jq '.[] | select(.name == "listen.port")'

    Parameters
    ----------
    all
        Show settings with their default too.
    state_dir
        State directory with the settings. Default: $GATEPOST_HOME, else ~/.gatepost.
    """
    found = _list_settings(state_dir)
    shown = found if all else [each for each in found if each.origin != DEFAULT_ORIGIN]
    document = [
        {"name": each.name, "value": _plain(each.value), "origin": each.origin} for each in shown
    ]
    output.print_result(options, document, lambda: _print_settings(shown))


def check_settings(
    *, state_dir: Path | None = None, options: OutputOptions = DEFAULT_OUTPUT
) -> None:
    """Check the settings file and the variables, without starting anything.

    Exits with 2 if they cannot be used, and names the setting and its source.

    For example:

      gatepost config check && gatepost config reload

    Parameters
    ----------
    state_dir
        State directory with the settings. Default: $GATEPOST_HOME, else ~/.gatepost.
    """
    changed = sum(each.origin != DEFAULT_ORIGIN for each in _list_settings(state_dir))
    file = config.settings_file_of(os.environ, state_dir)
    checked = CheckedSettings(str(file) if file.exists() else None, changed)
    count = output.format_count(changed, "setting")
    where = checked.file or f"without a settings file at {file}"
    output.print_result(
        options,
        checked,
        lambda: output.print_line(f"{where}: can be used; {count} not at the default"),
    )


def reload_settings(*, options: GatewayOptions = DEFAULT_OPTIONS) -> None:
    """Let the running gateway read its settings again, as SIGHUP does.

    Says which changes are in effect, and which need a restart. A mistake changes nothing.

    For example:

      gatepost config reload
    """
    with options.find_gateway() as gateway:
        reloaded = gateway.post("/v1/settings/reload", {}, SettingsReloaded)
    output.print_result(options, reloaded, lambda: _print_reloaded(reloaded))


def print_schema(*, options: OutputOptions = DEFAULT_OUTPUT) -> None:
    """Print the JSON Schema of gatepost.toml.

    `gatepost init` writes it beside the file, which names it in its first line.

    For example:

      gatepost config schema > gatepost.schema.json
    """
    schema = settings_schema()
    output.print_result(options, schema, lambda: print(encode_schema().decode(), end=""))


def _list_settings(state_dir: Path | None) -> list[SettingOrigin]:
    with report_unusable_settings():
        return list_setting_origins(os.environ, state_dir)


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else value


def _print_settings(shown: list[SettingOrigin]) -> None:
    if not shown:
        output.print_line("every setting has its default; --all shows them")
        return
    rows = [(each.name, toml_value(each.value), each.origin) for each in shown]
    output.print_table(("Setting", "Value", "From"), rows)


def _print_reloaded(reloaded: SettingsReloaded) -> None:
    output.print_line(f"in effect: {', '.join(reloaded.applied) or 'no change'}")
    if reloaded.needs_restart:
        output.print_line(f"after a restart: {', '.join(reloaded.needs_restart)}", "yellow")
