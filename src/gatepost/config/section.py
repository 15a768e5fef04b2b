"""The base of all sections of the settings."""

import msgspec


class SettingsSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all sections: immutable, and unknown keys are refused."""
