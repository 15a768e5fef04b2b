"""The `mcp` SDK: an extra that takes a second to import, so it is imported when it is needed."""

import asyncio
import logging
from importlib.util import find_spec
from types import ModuleType
from typing import NamedTuple

ADVICE = (
    "this gateway has no MCP server: run `pip install 'gatepost[mcp]'` where the gateway is"
    " installed, and start it again"
)


class SdkModules(NamedTuple):
    """Our modules that need the SDK."""

    server: ModuleType
    transports: ModuleType


class Sdk:
    """Loads the modules that need the SDK, once, beside the event loop."""

    def __init__(self) -> None:
        self._loading: asyncio.Task[SdkModules] | None = None

    @property
    def is_installed(self) -> bool:
        return find_spec("mcp") is not None

    async def load(self) -> SdkModules:
        if self._loading is None:
            self._loading = asyncio.create_task(asyncio.to_thread(_import_modules))
        return await asyncio.shield(self._loading)


def _import_modules() -> SdkModules:
    # Its messages quote input of clients. Errors in our part of a call are logged elsewhere.
    logging.getLogger("mcp").setLevel(logging.CRITICAL)
    from gatepost.mcp.server import sdk_server, sdk_transports

    return SdkModules(sdk_server, sdk_transports)
