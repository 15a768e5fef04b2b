"""Every command of `gatepost`: its group in the help, its name and its function.

The function's docstring is the command's whole help, and its first line the summary in the list of
commands. `gatepost --help` reads the summaries from the source: to import every command is slow.
"""

from functools import cache
from pathlib import Path
from typing import NamedTuple

_COMMANDS_FOLDER = Path(__file__).with_name("commands")


class CommandEntry(NamedTuple):
    """`name` is one word, or a family and a word; `function` is in gatepost.cli.commands."""

    group: str
    name: str
    function: str

    @property
    def summary(self) -> str:
        module, _, name = self.function.partition(":")
        _, _, source = _read_source(module).partition(f"\ndef {name}(")
        return source.partition('"""')[2].partition("\n")[0].removesuffix('"""')


@cache
def _read_source(module: str) -> str:
    file = _COMMANDS_FOLDER.joinpath(*module.split(".")).with_suffix(".py")
    return file.read_text(encoding="utf-8")


# The help shows groups and commands in this order.
# fmt: off
COMMANDS = (
    CommandEntry("Gateway", "up", "up:run_gateway"),
    CommandEntry("Gateway", "down", "up:stop_running_gateway"),
    CommandEntry("Gateway", "init", "init:write_settings_file"),
    CommandEntry("Gateway", "status", "status:show_status"),
    CommandEntry("Gateway", "doctor", "doctor:diagnose_gateway"),
    CommandEntry("Gateway", "service install", "service:install_service"),
    CommandEntry("Gateway", "service uninstall", "service:uninstall_service"),
    CommandEntry("Gateway", "service status", "service:show_service"),
    CommandEntry("Gateway", "config show", "config:show_settings"),
    CommandEntry("Gateway", "config check", "config:check_settings"),
    CommandEntry("Gateway", "config reload", "config:reload_settings"),
    CommandEntry("Gateway", "config schema", "config:print_schema"),
