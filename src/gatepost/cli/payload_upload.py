"""Uploads payloads and replies too large for a request, with a progress bar."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from gatepost.cli.gateway_api import CliGateway
from gatepost.cli.options import GatewayOptions
from gatepost.cli.problems import usage_problem
from gatepost.cli.progress_bar import ProgressBar

_PIECE_BYTES = 256 * 1024


def upload_payload(gateway: CliGateway, payload: bytes, options: GatewayOptions) -> str:
    """Store a payload as a blob; returns its digest."""
    pieces = (payload[n : n + _PIECE_BYTES] for n in range(0, len(payload), _PIECE_BYTES))
    with ProgressBar("uploading", len(payload), options, unit="bytes") as progress:
        return _upload_pieces(gateway, progress.count_pieces(pieces), len(payload))


def upload_file(gateway: CliGateway, path: Path, options: GatewayOptions) -> str:
    """Store the bytes of a file as a blob; returns its digest. `-` is standard input."""
    try:
        with _open_file(path) as file:
            length = path.stat().st_size if path.is_file() else None
            with ProgressBar(f"uploading {path.name}", length, options, unit="bytes") as progress:
                return _upload_pieces(gateway, progress.count_pieces(_read_pieces(file)), length)
    except OSError as error:
        raise usage_problem(f"{path} cannot be read: {error.strerror or error}") from None


def _open_file(path: Path) -> BinaryIO:
    return sys.stdin.buffer if str(path) == "-" else path.open("rb")


def _read_pieces(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(_PIECE_BYTES):
        yield piece


def _upload_pieces(gateway: CliGateway, pieces: Iterator[bytes], length: int | None) -> str:
    return gateway.upload(pieces, length).digest
