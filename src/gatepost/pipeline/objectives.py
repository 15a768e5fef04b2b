"""Service level objectives, and the thresholds of incidents."""

import tomllib
from pathlib import Path

import msgspec
from msgspec import Struct

from gatepost.errors import ConfigError

_HOUR_SECS = 3600


class Objectives(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times in seconds. The same objectives give the same tables, however often they are made."""

    # A window never crosses an hour, because tables are replaced by whole hours.
    window: int = 300
    # A longer wait of a delivery means that its node was away.
    online: int = 60
    delivery_p95: float = 5.0
    sla: int = 600
    backlog: int = 600
    backlog_least: int = 10
    silence: int = 600
    # Events this recent may not be archived yet, so a node without any is not yet silent.
    archiving: int = 120
    burst: int = 10
    # A receipt that was written longer than this before its message shows a wrong clock.
    clock_skew: int = 30
    # Repeated routing misses of a capability are a misfire; one may be bad luck.
    routing_misses: int = 2
    max_inline: int = 65_536
    # Incidents, reviews and ETA advice look back this far.
    days: int = 30
    # Ids older than this before their event are ignored. Longer than any TTL.
    id_days: int = 31

    def __post_init__(self) -> None:
        if self.window < 1 or _HOUR_SECS % self.window:
            raise ConfigError(f"a window of {self.window} s does not divide an hour")
        for name in self.__struct_fields__:
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}, and cannot be negative")

    @classmethod
    def load_file(cls, path: Path) -> "Objectives":
        """Load a TOML file that names only the values that differ from the defaults."""
        try:
            return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), cls)
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
        except (ValueError, msgspec.ValidationError) as error:
            raise ConfigError(f"{path}: {error}") from None

    def differing_names(self, other: "Objectives") -> list[str]:
        """The names of the objectives whose values differ."""
        names = self.__struct_fields__
        return [name for name in names if getattr(self, name) != getattr(other, name)]

    @property
    def id_age(self) -> int:
        """`id_days` in milliseconds."""
        return self.id_days * 24 * _HOUR_SECS * 1000

    @property
    def window_ms(self) -> int:
        return self.window * 1000
