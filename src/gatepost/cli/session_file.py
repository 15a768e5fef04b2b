"""The token of a command: a plain token, or the access token of the session in its token file."""

import ssl

from gatepost.cli.gateway_api import CliTarget
from gatepost.cli.problems import CommandProblem, unreachable_problem
from gatepost.clock import Clock
from gatepost.errors import GatepostError, Unavailable
from gatepost.session_file import SessionFile, holds_session


def current_token(target: CliTarget, clock: Clock | None = None) -> str:
    """The token to use now: the file's own, or the access token of the session in it."""
    if not holds_session(target.token_file):
        return target.read_token()
    tls = target.tls_verification()
    known = tls if isinstance(tls, ssl.SSLContext) else None
    try:
        return SessionFile(target.token_file, target.url, known, clock).current_target().token
    except Unavailable as error:
        raise unreachable_problem(error.message) from None
    except GatepostError as error:
        raise CommandProblem(error.code, error.message) from None
