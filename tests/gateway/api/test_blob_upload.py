"""Blobs over HTTP: streamed in and out, never whole in memory, never half."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import httpx
import pytest

from gatepost.errors import DeadlineExceeded, InvalidRequest, PayloadTooLarge, Unavailable
from gatepost.gateway.api import blob_upload
from gatepost.gateway.api.blob_upload import BlobUploads
from gatepost.testing import GatewayProcess
from tests.gateway.tools import client, dump, memory, opened
from tests.waiting import wait_until

MIB = 1024 * 1024
LIMIT = 64 * MIB


def _pieces(size: int) -> Iterator[bytes]:
    piece = bytes(range(256)) * 256
    for start in range(0, size, len(piece)):
        yield piece[: min(len(piece), size - start)]


def _sha(pieces: Iterator[bytes]) -> str:
    mark = hashlib.sha256()
    for piece in pieces:
        mark.update(piece)
    return mark.hexdigest()


def _download(http: httpx.Client, digest: str) -> str:
    with http.stream("GET", f"/v1/blobs/{digest}") as answer:
        assert answer.is_success
        return _sha(answer.iter_bytes())


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 3 * MIB])
def test_a_blob_comes_back_as_it_went_in(http: httpx.Client, size: int) -> None:
    stored = http.post("/v1/blobs", content=_pieces(size))
    assert stored.status_code == 201
    assert stored.json()["size"] == size
    assert _download(http, stored.json()["digest"]) == _sha(_pieces(size))


def test_unknown_and_impossible_digests(http: httpx.Client) -> None:
    unknown = http.get("/v1/blobs/sha256:" + "0" * 64)
    assert (unknown.status_code, unknown.json()["code"]) == (404, "unknown_blob")
    odd = http.get("/v1/blobs/sha256:nonsense")
    assert (odd.status_code, odd.json()["code"]) == (400, "invalid_id")


def test_the_largest_blob_fits_and_a_byte_more_does_not_with_memory_flat(
    start: Callable[..., GatewayProcess],
) -> None:
    gateway = start()
    with client(gateway) as http:
        http.post("/v1/blobs", content=_pieces(MIB))
        before = memory(gateway)
        stored = http.post("/v1/blobs", content=_pieces(LIMIT))
        assert stored.status_code == 201
        assert _download(http, stored.json()["digest"]) == _sha(_pieces(LIMIT))
        grown = memory(gateway) - before
        assert grown < 25 * MIB, f"{grown:,} bytes"
        refused = http.post("/v1/blobs", content=_pieces(LIMIT + 1))
        assert (refused.status_code, refused.json()["code"]) == (413, "payload_too_large")
    blobs = gateway.state_dir / "blobs"
    assert len(list(blobs.iterdir())) == 2, "nothing is left of what was refused"
    assert {path.stat().st_mode & 0o777 for path in blobs.iterdir()} == {0o600}


def test_half_an_upload_leaves_nothing(gateway: GatewayProcess) -> None:
    def broken() -> Iterator[bytes]:
        yield from _pieces(MIB)
        raise KeyboardInterrupt

    blobs = gateway.state_dir / "blobs"
    files, rows = set(blobs.iterdir()), dump(gateway.state_dir / "journal.db")["blob"]
    with client(gateway) as http, pytest.raises(KeyboardInterrupt):
        http.post("/v1/blobs", content=broken())
    wait_until(lambda: set(blobs.iterdir()) == files)
    assert dump(gateway.state_dir / "journal.db")["blob"] == rows


# -- in this process


class Stall:
    """A body stops here until it is released."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.released = asyncio.Event()


async def _body(*pieces: bytes, then: Exception | Stall | None = None) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
    if isinstance(then, Exception):
        raise then
    if then is not None:
        then.reached.set()
        await then.released.wait()


def _files(state: Path) -> int:
    return len(list((state / "blobs").iterdir()))


@pytest.mark.anyio
async def test_a_body_that_breaks_off_is_not_stored(state: Path) -> None:
    async with opened(state) as operations:
        with pytest.raises(InvalidRequest):
            await BlobUploads(operations).store_body(_body(b"half", then=InvalidRequest("gone")))
        assert _files(state) == 0
        assert dump(operations.core)["blob"] == []


@pytest.mark.anyio
async def test_a_cancelled_upload_is_not_stored_and_frees_its_thread(state: Path) -> None:
    async with opened(state) as operations:
        uploads = BlobUploads(operations)
        for _ in range(40):
            stall = Stall()
            storing = asyncio.create_task(uploads.store_body(_body(b"half", then=stall)))
            await stall.reached.wait()
            storing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await storing
        assert _files(state) == 0
        _, size = await uploads.store_body(_body(b"whole"))
        assert size == 5


@pytest.mark.anyio
async def test_a_stalled_upload_is_given_up(state: Path) -> None:
    async with opened(state, limits__request_timeout_secs=0.1) as operations:
        with pytest.raises(DeadlineExceeded):
            await BlobUploads(operations).store_body(_body(b"half", then=Stall()))
        assert _files(state) == 0


@pytest.mark.anyio
async def test_an_upload_over_the_limit_is_not_read_to_its_end(state: Path) -> None:
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 1
            assert read < 1000
            yield b"x" * 65_536

    async with opened(state, limits__max_blob_bytes=MIB) as operations:
        with pytest.raises(PayloadTooLarge):
            await BlobUploads(operations).store_body(endless())
        assert _files(state) == 0


@pytest.mark.anyio
async def test_there_are_only_so_many_uploads_at_once(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blob_upload, "_AT_ONCE", 2)
    async with opened(state) as operations:
        uploads = BlobUploads(operations)
        stalls = [Stall(), Stall()]
        held = [asyncio.create_task(uploads.store_body(_body(b"x", then=each))) for each in stalls]
        for stall in stalls:
            await stall.reached.wait()
        start = time.monotonic()
        with pytest.raises(Unavailable):
            await uploads.store_body(_body(b"x"))
        assert time.monotonic() - start < 5
        for stall in stalls:
            stall.released.set()
        await asyncio.gather(*held)
        await uploads.store_body(_body(b"x"))
