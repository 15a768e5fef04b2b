"""Reads the settings of the running gateway again: on SIGHUP, or when the operator asks.

Most settings shape something that exists already: a listener, a journal, limits of connections.
Those need a restart, and are named. `RELOADED` lists the ones that take effect at once.
"""

import logging
from collections.abc import Callable
from typing import Any

from litestar import Router
from msgspec.structs import replace

from gatepost.config import Settings
from gatepost.core.gateway_core import Core
from gatepost.errors import ConfigError, GatepostError, InvalidRequest
from gatepost.gateway.monitoring import logs
from gatepost.listening.route_decorators import post
from gatepost.wire.gateway_views import SettingsReloaded

log = logging.getLogger(__name__)

LoadSettings = Callable[[], Settings]

# Section → its settings that a running gateway takes over.
RELOADED: dict[str, tuple[str, ...]] = {
    "limits": ("max_agents", "max_mailboxes"),
    "log": ("level", "format", "file"),
}


class SettingsReload:
    """`load` reads the settings as the start did; without it nothing can be reloaded."""

    def __init__(self, core: Core, load: LoadSettings | None) -> None:
        self._core = core
        self._load = load

    def reload(self) -> SettingsReloaded:
        """Take over what can be; ConfigError changes nothing."""
        if self._load is None:
            raise InvalidRequest("this gateway was started without a settings file to read again")
        before, wanted = self._core.settings, self._load()
        changed = list_changes(before, wanted)
        applied = [name for name in changed if _is_reloaded(name)]
        if any(name.startswith("log.") for name in applied):
            logs.configure_logging(
                wanted.log.level, wanted.log.format, wanted.named_file(wanted.log.file)
            )
        self._core.settings = _merge(before, wanted)
        self._core.agents.max_agents = wanted.limits.max_agents
        self._core.admission.max_mailboxes = wanted.limits.max_mailboxes
        result = SettingsReloaded(applied, [name for name in changed if name not in applied])
        log.info(
            "settings read again; in effect: %s; after a restart: %s",
            ", ".join(result.applied) or "no change",
            ", ".join(result.needs_restart) or "nothing",
        )
        return result

    def reload_on_signal(self) -> None:
        """SIGHUP has no caller: a mistake is in the log, and the settings stay."""
        try:
            self.reload()
        except GatepostError as error:
            log.error("the settings stay as they are: %s", error.message)


def list_changes(before: Settings, wanted: Settings) -> list[str]:
    """The settings that differ, as `section.key`."""
    return [
        f"{section}.{key}"
        for section in before.__struct_fields__
        for key in getattr(before, section).__struct_fields__
        if getattr(getattr(before, section), key) != getattr(getattr(wanted, section), key)
    ]


def _is_reloaded(name: str) -> bool:
    section, _, key = name.partition(".")
    return key in RELOADED.get(section, ())


def _merge(before: Settings, wanted: Settings) -> Settings:
    """The settings of before, with those of `wanted` that take effect at once."""
    sections: dict[str, Any] = {}
    for section, keys in RELOADED.items():
        taken = {key: getattr(getattr(wanted, section), key) for key in keys}
        sections[section] = replace(getattr(before, section), **taken)
    return replace(before, **sections)


def create_router(settings: SettingsReload) -> Router:
    @post("/reload", status_code=200, summary="Read the settings again")
    async def reload() -> SettingsReloaded:
        try:
            return settings.reload()
        except ConfigError as error:
            raise InvalidRequest(f"the settings stay as they are: {error.message}") from None

    return Router("/v1/settings", route_handlers=[reload])
