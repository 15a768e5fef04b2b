"""Command-line options that several commands share."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

if TYPE_CHECKING:
    from cyclopts.completion import CompletionContext

    from gatepost.cli.gateway_api import CliGateway

COMMON_GROUP = Group("Common options", sort_key=100)

Flag = Annotated[bool, Parameter(negative=(), show_default=False)]


@Parameter(name="*", group=COMMON_GROUP)
@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Options for the output of a command."""

    json: Flag = False
    "Print one JSON document instead of text."


@Parameter(name="*", group=COMMON_GROUP)
@dataclass(frozen=True, kw_only=True)
class GatewayOptions(OutputOptions):
    """Options for the output of a command and for the gateway it talks to.

    An option wins over all environment variables: `--state-dir` alone selects the gateway of that
    directory even if GATEPOST_URL is set. GATEPOST_CONTEXT wins over the other variables.
    """

    state_dir: Path | None = None
    "State directory of the gateway. Default: $GATEPOST_HOME, else ~/.gatepost."
    url: str | None = None
    "Address of the gateway. Default: $GATEPOST_URL, else the one running on the state directory."
    token_file: Path | None = None
    "File that holds the token. Default: $GATEPOST_TOKEN_FILE, else `token` in the state directory."
    context: str | None = None
    "Gateway and token that `gatepost context add` named. Default: $GATEPOST_CONTEXT."

    def find_gateway(self) -> "CliGateway":
        """The selected gateway; nothing has been sent to it yet."""
        from gatepost.cli.gateway_api import CliGateway

        return CliGateway.find(self)


DEFAULT_OUTPUT = OutputOptions()
DEFAULT_OPTIONS = GatewayOptions()


def complete_agent_names(_: "CompletionContext") -> list[str]:
    """Shell completion of agent names."""
    from gatepost.wire.gateway_views import AgentInfo

    with DEFAULT_OPTIONS.find_gateway() as gateway:
        return [agent.id for agent in gateway.get("/v1/agents", list[AgentInfo])]


AgentName = Annotated[str, Parameter(completer=complete_agent_names)]
YesOption = Annotated[Flag, Parameter(alias="-y", help="Do not ask for confirmation.")]
