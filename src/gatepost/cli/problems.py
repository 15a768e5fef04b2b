"""Exit codes, and the exception that ends a command with a message."""

from enum import IntEnum

LOST_ANSWER = "unknown"


class Exit(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    INTERRUPTED = 130


class Problem(Exception):
    """Ends a command. `message` names the problem and the next step; `code` is for scripts."""

    def __init__(self, code: str, message: str, exit: Exit = Exit.FAILED) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.exit = exit


def usage(message: str) -> Problem:
    return Problem("usage", message, Exit.USAGE)


def unreachable(message: str) -> Problem:
    return Problem("unreachable", message, Exit.UNREACHABLE)


def lost_answer(event: str) -> Problem:
    """The answer was lost, so the outcome at the gateway is unknown."""
    message = f"{event}; it is unknown whether the gateway did it"
    return Problem(LOST_ANSWER, message, Exit.UNREACHABLE)
