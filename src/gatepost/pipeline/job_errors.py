"""Turns the errors of storage, Delta and Spark into one sentence that a person can act on."""

import contextlib
import errno
import sys
from collections.abc import Iterator
from typing import Final

from gatepost.errors import PipelineError, TablesBusy, TablesFull

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_FULL_TEXTS: Final = (
    *("No space left on device", "Disk quota exceeded"),
    *(f"os error {number})" for number in _FULL),
)
_SCRATCH_FULL: Final = (
    "no space is left for Spark's temporary files: free some, or choose another folder with"
    " --conf spark.local.dir=FOLDER"
)


@contextlib.contextmanager
def wrap_job_errors() -> Iterator[None]:
    """Re-raise errors of storage, Delta and Spark as `PipelineError`."""
    try:
        yield
    except Exception as error:
        if (sentence := describe_error(error)) is None:
            raise
        raise PipelineError(sentence) from None


@contextlib.contextmanager
def name_full_disk(tables: str) -> Iterator[None]:
    """Re-raise the error of a full disk, of whichever library, as `TablesFull`."""
    try:
        yield
    except Exception as error:
        if isinstance(error, TablesFull) or not is_disk_full(error):
            raise
        raise TablesFull(
            f"the disk of {tables} is full: free some space, and run the job again, which then"
            " finishes its batch"
        ) from None


def is_disk_full(error: BaseException) -> bool:
    """Whether the disk is full; libraries in other languages only say so in their message."""
    if isinstance(error, OSError) and error.errno in _FULL:
        return True
    if error.__cause__ is not None and is_disk_full(error.__cause__):
        return True
    return any(text in str(error) for text in _FULL_TEXTS)


def is_about_tables(error: Exception) -> bool:
    """Whether the tables or their disk cannot be written, independently of the archive."""
    if isinstance(error, (TablesBusy, TablesFull, PermissionError)) or is_disk_full(error):
        return True
    # Of an executor's error only the text arrives.
    return f"{TablesFull.__module__}.{TablesFull.__name__}: " in str(error)


def describe_error(error: Exception) -> str | None:
    """The error in one sentence; None if it is not an expected error of a job."""
    if isinstance(error, PermissionError):
        return f"{error.filename or 'a file'} cannot be written: permission denied"
    if isinstance(error, OSError):
        return _first_line(str(error))
    if _is_from(error, "deltalake", ("DeltaError",)):
        return f"a table cannot be read or written: {_first_line(str(error))}"
    if _is_from(error, "pyspark.errors", ("PySparkException",)) or _is_from(
        error, "py4j.protocol", ("Py4JError",)
    ):
        return _SCRATCH_FULL if is_disk_full(error) else worker_message(str(error))
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
