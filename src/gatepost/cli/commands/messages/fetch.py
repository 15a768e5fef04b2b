"""`gatepost fetch`: downloads a payload that is stored as a blob."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO

from cyclopts import Parameter

from gatepost.cli import output
from gatepost.cli.options import DEFAULT_OPTIONS, GatewayOptions
from gatepost.cli.problems import usage_problem
from gatepost.cli.progress_bar import ProgressBar
from gatepost.events import check_digest


def fetch_payload(
    digest: str,
    /,
    *,
    output_file: Annotated[Path | None, Parameter(name="--output", alias="-o")] = None,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> None:
    """Download a payload that was too large to travel inside its message.

    For example:

      gatepost fetch sha256:DIGEST --output photo.jpg

    Parameters
    ----------
    digest
        The digest, as `gatepost inbox --take` prints it.
    output_file
        The file to write. Default: standard output.
    """
    check_digest(digest)
    if output_file is None and (options.json or sys.stdout.isatty()):
        raise usage_problem("name a file with --output, or redirect standard output")
    with (
        options.find_gateway() as gateway,
        gateway.download(digest) as pieces,
        _open_target(output_file) as target,
    ):
        size = _save_pieces(pieces, target, options)
    if output_file is not None:
        document = {"file": str(output_file), "size": size}
        text = f"{output.format_size(size)} written to {output_file}"
        output.print_result(options, document, lambda: output.print_line(text))


def _save_pieces(pieces: Iterator[bytes], target: BinaryIO, options: GatewayOptions) -> int:
    size = 0
    with ProgressBar("fetching", None, options, unit="bytes") as progress:
        for piece in progress.count_pieces(pieces):
            size += target.write(piece)
        target.flush()
    return size


# Only the user may read a payload.
_NEW_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


@contextmanager
def _open_target(path: Path | None) -> Iterator[BinaryIO]:
    """Standard output, or a new file that is removed again on failure."""
    if path is None:
        yield sys.stdout.buffer
        return
    with _create_file(path) as file:
        try:
            yield file
        except BaseException:
            path.unlink()
            raise


def _create_file(path: Path) -> BinaryIO:
    try:
        return os.fdopen(os.open(path, _NEW_FILE_FLAGS, 0o600), "wb")
    except FileExistsError:
        raise usage_problem(f"{path} exists already: choose another name") from None
    except OSError as error:
        raise usage_problem(f"{path} cannot be written: {error.strerror}") from None
