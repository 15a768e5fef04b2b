"""Exit codes, and the exception that ends a command with a message."""

from enum import IntEnum

LOST_ANSWER_CODE = "unknown"


class ExitCode(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    # The verdict of an audit that lacks evidence; like a wrong call, it proves nothing.
    UNDECIDED = 2
    UNREACHABLE = 3
    INTERRUPTED = 130


class CommandProblem(Exception):
    """Ends a command. `message` names the problem and the next step; `code` is for scripts."""

    def __init__(self, code: str, message: str, exit: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.exit = exit


def usage_problem(message: str) -> CommandProblem:
    return CommandProblem("usage", message, ExitCode.USAGE)


def unreachable_problem(message: str) -> CommandProblem:
    return CommandProblem("unreachable", message, ExitCode.UNREACHABLE)


def lost_answer_problem(event: str) -> CommandProblem:
    """The answer was lost, so the outcome at the gateway is unknown."""
    message = f"{event}; it is unknown whether the gateway did it"
    return CommandProblem(LOST_ANSWER_CODE, message, ExitCode.UNREACHABLE)
