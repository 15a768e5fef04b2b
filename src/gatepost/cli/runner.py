"""Runs a command line: parses it, reports every error in one way, returns the exit code."""

import json
import os
import sys

from cyclopts import CycloptsError

from gatepost.cli.app import app, use_docstring_help
from gatepost.cli.extras import EXTRA_OF_MODULE, install_line
from gatepost.cli.problems import CommandProblem, ExitCode, usage_problem
from gatepost.errors import GatepostError, InvalidRequest

_OPTIONS_WITH_VALUE = ("--state-dir", "--url", "--token-file", "--context")


def run_command(arguments: list[str]) -> int:
    tokens = move_leading_options(arguments)
    try:
        return _call_app(tokens)
    except CommandProblem as problem:
        _print_problem(problem, as_json=wants_json(tokens))
        return problem.exit
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader of our output is gone; nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILED
    except OSError as error:
        if error.filename is None:
            raise
        # A file or folder that this user may not open, such as another user's state directory.
        text = f"{error.filename} cannot be used: {error.strerror}"
        _print_problem(CommandProblem("storage_failed", text), as_json=wants_json(tokens))
        return ExitCode.FAILED


def move_leading_options(tokens: list[str]) -> list[str]:
    """Move common options behind the command: they belong to it, but users write them first."""
    rest, leading = list(tokens), []
    while rest and (name := rest[0].partition("=")[0]) in (*_OPTIONS_WITH_VALUE, "--json"):
        size = 1 if name == "--json" or "=" in rest[0] else 2
        leading += rest[:size]
        del rest[:size]
    if wants_json(rest):
        leading = [token for token in leading if token != "--json"]
    end = _end_of_options(rest)
    return [*rest[:end], *leading, *rest[end:]]


def wants_json(tokens: list[str]) -> bool:
    return "--json" in tokens[: _end_of_options(tokens)]


def _end_of_options(tokens: list[str]) -> int:
    return tokens.index("--") if "--" in tokens else len(tokens)


def _call_app(tokens: list[str]) -> int:
    try:
        use_docstring_help(tokens)
        code = app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
        return code if isinstance(code, int) else ExitCode.OK
    except ModuleNotFoundError as error:
        raise _missing_extra_problem(error) from None
    except CycloptsError as error:
        raise _misuse_problem(error) from None
    except GatepostError as error:
        exit = ExitCode.USAGE if isinstance(error, InvalidRequest) else ExitCode.FAILED
        raise CommandProblem(error.code, error.message, exit) from None


def _missing_extra_problem(error: ModuleNotFoundError) -> CommandProblem:
    """A command whose extra is not installed says the one line to run."""
    module = (error.name or "").partition(".")[0]
    extra = EXTRA_OF_MODULE.get(module)
    if extra is None:
        raise error
    return CommandProblem(
        "extra_missing", f"this needs {module}, which is not installed: {install_line(extra)}"
    )


def _misuse_problem(error: CycloptsError) -> CommandProblem:
    error.verbose = False
    command = " ".join(("gatepost", *(error.command_chain or ())))
    return usage_problem(f"{str(error).strip()} Try `{command} --help`.")


def _print_problem(problem: CommandProblem, *, as_json: bool) -> None:
    if as_json:
        text = json.dumps({"code": problem.code, "message": problem.message}, ensure_ascii=False)
    elif sys.stderr.isatty() and not os.environ.get("NO_COLOR"):
        text = f"\x1b[31mgatepost:\x1b[0m {problem.message}"
    else:
        text = f"gatepost: {problem.message}"
    print(text, file=sys.stderr)
