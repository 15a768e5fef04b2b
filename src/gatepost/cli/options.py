"""What several commands have in common on the command line."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

if TYPE_CHECKING:
    from cyclopts.completion import CompletionContext

    from gatepost.cli.connect import Gateway

COMMON = Group("Common options", sort_key=100)

Flag = Annotated[bool, Parameter(negative=(), show_default=False)]


@Parameter(name="*", group=COMMON)
@dataclass(frozen=True, kw_only=True)
class Output:
    """How a command answers."""

    json: Flag = False
    "Print one JSON document instead of text."


@Parameter(name="*", group=COMMON)
@dataclass(frozen=True, kw_only=True)
class Options(Output):
    """How a command answers, and which gateway it talks to.

    What is given here wins over the environment as a whole: `--state-dir` alone means the
    gateway of that directory, whatever GATEPOST_URL says.
    """

    state_dir: Path | None = None
    "State directory of the gateway. Default: $GATEPOST_HOME, else ~/.gatepost."
    url: str | None = None
    "Address of the gateway. Default: $GATEPOST_URL, else the one running on the state directory."
    token_file: Path | None = None
    "File that holds the token. Default: $GATEPOST_TOKEN_FILE, else `token` in the state directory."

    def gateway(self) -> "Gateway":
        """The gateway meant, found but not yet spoken to."""
        from gatepost.cli.connect import Gateway

        return Gateway.find(self)


OUTPUT = Output()
OPTIONS = Options()


def agent_names(_: "CompletionContext") -> list[str]:
    """What a shell offers where an agent is named; nothing if no gateway runs."""
    from gatepost.wire import Agent

    with OPTIONS.gateway() as gateway:
        return [agent.id for agent in gateway.get("/v1/agents", list[Agent])]


AgentName = Annotated[str, Parameter(completer=agent_names)]
Yes = Annotated[Flag, Parameter(alias="-y", help="Do not ask for confirmation.")]
