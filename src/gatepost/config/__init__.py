"""One typed settings tree, read from a TOML file and GATEPOST_* environment variables."""

from gatepost.config.monitoring_settings import AlertsSettings, TelemetrySettings
from gatepost.config.settings import (
    ArchiveSettings,
    LimitsSettings,
    ListenSettings,
    MailboxSettings,
    NodeSettings,
    OwnershipSettings,
    RoomSettings,
    Settings,
    default_node_id,
    is_loopback,
)
from gatepost.config.settings_file import (
    FILE_NAME,
    ChosenSettings,
    default_settings_path,
    default_toml,
    load_settings,
    settings_file_of,
)

__all__ = [
    "FILE_NAME",
    "AlertsSettings",
    "ArchiveSettings",
    "ChosenSettings",
    "LimitsSettings",
    "ListenSettings",
    "MailboxSettings",
    "NodeSettings",
    "OwnershipSettings",
    "RoomSettings",
    "Settings",
    "TelemetrySettings",
    "default_node_id",
    "default_settings_path",
    "default_toml",
    "is_loopback",
    "load_settings",
    "settings_file_of",
]
