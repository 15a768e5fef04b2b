"""Turns the errors of storage, Delta and Spark into one sentence that a person can act on."""

import contextlib
import sys
from collections.abc import Iterator

from gatepost.errors import PipelineError


@contextlib.contextmanager
def wrap_job_errors() -> Iterator[None]:
    """Re-raise errors of storage, Delta and Spark as `PipelineError`."""
    try:
        yield
    except Exception as error:
        if (sentence := describe_error(error)) is None:
            raise
        raise PipelineError(sentence) from None


def describe_error(error: Exception) -> str | None:
    """The error in one sentence; None if it is none of those that a job may meet."""
    if isinstance(error, PermissionError):
        return f"{error.filename or 'a file'} cannot be written: permission denied"
    if isinstance(error, OSError):
        return _first_line(str(error))
    if _is_from(error, "deltalake", ("DeltaError",)):
        return f"a table cannot be read or written: {_first_line(str(error))}"
    if _is_from(error, "pyspark.errors", ("PySparkException",)) or _is_from(
        error, "py4j.protocol", ("Py4JError",)
    ):
        return worker_message(str(error))
    if _is_from(error, "pyarrow.lib", ("ArrowException",)):
        return _first_line(str(error))
    return None


def _is_from(error: Exception, module: str, names: tuple[str, ...]) -> bool:
    """Whether the error is of a class with this name, from a module that may not be loaded."""
    if not any(loaded.startswith(module.partition(".")[0]) for loaded in sys.modules):
        return False
    return any(base.__name__ in names for base in type(error).__mro__)


def worker_message(error: str) -> str:
    """The last line of a worker's traceback, or else the first line of the text."""
    lines = [line for line in error.strip().splitlines() if line.strip()]
    traces = [place for place, line in enumerate(lines) if line.startswith("Traceback (most")]
    if not traces:
        return _first_line(error)
    # The message of an exception follows the indented lines of its traceback.
    after = (line for line in lines[traces[-1] + 1 :] if not line.startswith(" "))
    last = next(after, lines[-1])
    return last.partition(": ")[2] if last.startswith("gatepost.") else last


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
