"""`gatepost fetch`: downloads a payload that is stored as a blob."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO

from cyclopts import Parameter

from gatepost.cli import output
from gatepost.cli.options import OPTIONS, Options
from gatepost.cli.problems import usage
from gatepost.cli.progress import Progress
from gatepost.events import check_digest


def fetch(
    digest: str,
    /,
    *,
    output_file: Annotated[Path | None, Parameter(name="--output", alias="-o")] = None,
    options: Options = OPTIONS,
) -> None:
    """Fetch a large payload.

    Parameters
    ----------
    digest
        The digest, as `gatepost inbox --take` prints it.
    output_file
        The file to write. Default: standard output.
    """
    path = f"/v1/blobs/{check_digest(digest)}"
    if output_file is None and (options.json or sys.stdout.isatty()):
        raise usage("name a file with --output, or redirect standard output")
    with (
        options.gateway() as gateway,
        gateway.download(path) as pieces,
        _opened(output_file) as target,
    ):
        size = _save(pieces, target, options)
    if output_file is not None:
        document = {"file": str(output_file), "size": size}
        text = f"{output.size(size)} written to {output_file}"
        output.show(options, document, lambda: output.say(text))


def _save(pieces: Iterator[bytes], target: BinaryIO, options: Options) -> int:
    size = 0
    with Progress("fetching", None, options, unit="bytes") as progress:
        for piece in progress.over(pieces):
            size += target.write(piece)
        target.flush()
    return size


@contextmanager
def _opened(path: Path | None) -> Iterator[BinaryIO]:
    """Standard output, or a new file that is removed again on failure."""
    if path is None:
        yield sys.stdout.buffer
        return
    with _created(path) as file:
        try:
            yield file
        except BaseException:
            path.unlink()
            raise


def _created(path: Path) -> BinaryIO:
    try:
        return path.open("xb")
    except FileExistsError:
        raise usage(f"{path} exists already: choose another name") from None
    except OSError as error:
        raise usage(f"{path} cannot be written: {error.strerror}") from None
