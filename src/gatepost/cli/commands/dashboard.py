"""`gatepost dashboard`: a one-time link to the dashboard."""

import webbrowser

from msgspec import Struct

from gatepost.cli import output
from gatepost.cli.options import DEFAULT_OPTIONS, Flag, GatewayOptions
from gatepost.wire.dashboard_views import DashboardLink, NewDashboardLink


class OpenedDashboard(Struct):
    url: str
    expires_at: int


def make_dashboard_link(
    *,
    read_only: Flag = False,
    open_: Flag = False,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> None:
    """Make a link that opens the dashboard in a browser, once, within a minute.

    For example:

      gatepost dashboard
      gatepost dashboard --read-only

    Parameters
    ----------
    read_only
        Who opens the link sees everything, and can change nothing.
    open_
        Open the link in the browser of this machine.
    """
    with options.find_gateway() as gateway:
        wanted = NewDashboardLink(read_only=read_only)
        made = gateway.post("/v1/dashboard/links", wanted, DashboardLink)
        # The part behind # stays in the browser: no server and no log has it.
        link = OpenedDashboard(f"{gateway.target.url}/login#{made.code}", made.expires_at)
    if open_:
        webbrowser.open(link.url)
    output.print_result(options, link, lambda: _print_link(link))


def _print_link(link: OpenedDashboard) -> None:
    output.print_line(link.url)
    output.print_hint("It opens once, within a minute. Whoever has it is the operator.")
