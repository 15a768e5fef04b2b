"""The command line, built from the command table. A command's module is imported when it runs."""

from collections.abc import Sequence
from itertools import count

from cyclopts import App, Group

from gatepost import __version__
from gatepost.cli.command_table import COMMANDS, FAMILIES, CommandEntry

_HELP = """Durable messages between agents.

Start here:

  gatepost up                           run a gateway (leave it running)
  gatepost agent add bob                let bob receive mail
  gatepost send bob "hello"             send bob a message
  gatepost inbox bob --take             take it, and get its lease handle
  gatepost ack bob HANDLE --reply hi    end the turn

Exit codes: 0 done, 1 failed or timed out, 2 wrong usage, 3 no gateway.
"""


def _build_app(commands: Sequence[CommandEntry]) -> App:
    """Add the commands of the table; the help lists them in the order they are added."""
    titles = dict.fromkeys(entry.group for entry in commands)
    groups = {title: Group(title, sort_key=number) for number, title in enumerate(titles, 1)}
    root = App(name="gatepost", help=_HELP, version=__version__, help_format="plaintext")
    families: dict[str, App] = {}
    order = count()
    for entry in commands:
        path = f"gatepost.cli.commands.{entry.function}"
        family, _, name = entry.name.rpartition(" ")
        if family and family not in families:
            families[family] = App(
                name=family,
                help=FAMILIES[family],
                group=groups[entry.group],
                sort_key=next(order),
            )
            root.command(families[family])
        parent = families.get(family, root)
        group = None if family else groups[entry.group]
        parent.command(path, name=name, help=entry.summary, group=group, sort_key=next(order))
    root["--help"].group = root["--version"].group = groups["Shell"]
    return root


app = _build_app(COMMANDS)


def use_docstring_help(tokens: list[str]) -> None:
    """Let `--help` of the command in `tokens` show its whole docstring, not only its summary.

    Cyclopts knows a command that is not imported yet by its summary, and keeps the summary as the
    command's help when it imports it.
    """
    flags = (*app.help_flags, *app.version_flags)
    _, (*_, command), _ = app.parse_commands([token for token in tokens if token not in flags])
    if command.default_command is not None:
        command.help = None
