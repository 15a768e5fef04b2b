"""The SDK of A2A: an extra that takes a second to import, so it is imported when it is needed."""

import asyncio
import logging
from importlib.util import find_spec
from types import ModuleType
from typing import NamedTuple

from gatepost.errors import ExtraMissing

ADVICE = (
    "this gateway has no door for A2A: run `pip install 'gatepost[a2a]'` where the gateway is"
    " installed, and start it again"
)


class SdkModules(NamedTuple):
    """Our modules that need the SDK."""

    app: ModuleType
    courier: ModuleType


class Sdk:
    """Loads the modules that need the SDK, once, beside the event loop."""

    def __init__(self) -> None:
        self._loading: asyncio.Task[SdkModules] | None = None

    @property
    def is_installed(self) -> bool:
        return find_spec("a2a") is not None

    async def load(self) -> SdkModules:
        """ExtraMissing if it is not installed."""
        if not self.is_installed:
            raise ExtraMissing(ADVICE)
        if self._loading is None:
            self._loading = asyncio.create_task(asyncio.to_thread(_import_modules))
        return await asyncio.shield(self._loading)


def _import_modules() -> SdkModules:
    # Its messages quote what clients sent. What goes wrong in our part of a call, we log ourselves.
    logging.getLogger("a2a").setLevel(logging.CRITICAL)
    from gatepost.a2a import sdk_app
    from gatepost.a2a.outside import courier

    return SdkModules(sdk_app, courier)
