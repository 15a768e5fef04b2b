"""How a command ends when it does not end well."""

from enum import IntEnum

LOST_ANSWER = "unknown"


class Exit(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    INTERRUPTED = 130


class Problem(Exception):
    """`message` says what is wrong and what to do next; `code` is the same for machines."""

    def __init__(self, code: str, message: str, exit: Exit = Exit.FAILED) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.exit = exit


def usage(message: str) -> Problem:
    return Problem("usage", message, Exit.USAGE)


def unreachable(message: str) -> Problem:
    return Problem("unreachable", message, Exit.UNREACHABLE)


def lost_answer(what: str) -> Problem:
    """The gateway may or may not have done what was asked."""
    message = f"{what}; whether the gateway did what was asked is unknown"
    return Problem(LOST_ANSWER, message, Exit.UNREACHABLE)
