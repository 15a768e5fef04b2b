"""Logs frequent warnings at most once a minute each."""

import logging

from msgspec import Struct

from gatepost.clock import Clock

log = logging.getLogger(__name__)

_QUIET_MS = 60_000
_MAX_TEXTS = 64


class _LoggedWarning(Struct):
    at: int
    repeated: int = 0


class RepeatedWarnings:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._logged: dict[str, _LoggedWarning] = {}

    def warn(self, text: str) -> None:
        """Log the warning, unless the same was logged within the last minute."""
        now = self._clock.now()
        before = self._logged.get(text)
        # After the clock went back, log the warning again.
        if before is not None and 0 <= now - before.at < _QUIET_MS:
            before.repeated += 1
            return
        if before is None or not before.repeated:
            log.warning("%s", text)
        else:
            log.warning("%s (and %d times since the last such line)", text, before.repeated)
        self._remember(text, now)

    def _remember(self, text: str, now: int) -> None:
        self._logged.pop(text, None)
        if len(self._logged) >= _MAX_TEXTS:
            del self._logged[next(iter(self._logged))]
        self._logged[text] = _LoggedWarning(now)
