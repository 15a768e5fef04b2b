"""The API on a Unix socket, for sessions that have no network. They use their task's token."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import uvicorn
from litestar import Litestar

log = logging.getLogger(__name__)

_MAX_REQUESTS = 512


class HubSocketServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do not capture: the gateway handles signals."""
        yield


@contextlib.asynccontextmanager
async def serve_on_socket(app: Litestar, path: Path) -> AsyncIterator[None]:
    """Serve until exit. The socket lies in the state directory, which only this user can enter."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.unlink(missing_ok=True)
    server = HubSocketServer(
        uvicorn.Config(
            app,
            uds=str(path),
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            limit_concurrency=_MAX_REQUESTS,
            timeout_graceful_shutdown=1,
        )
    )
    task = asyncio.create_task(_serve(server, path))
    try:
        yield
    finally:
        server.should_exit = True
        await task
        path.unlink(missing_ok=True)


async def _serve(server: uvicorn.Server, path: Path) -> None:
    """Where the socket cannot be made, only sessions with a network can report."""
    try:
        await server.serve()
    except (OSError, SystemExit) as error:
        log.warning("sessions without network cannot report: %s cannot be made (%s)", path, error)
