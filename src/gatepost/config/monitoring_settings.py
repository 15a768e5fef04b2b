"""Settings of monitoring: the log, alerts and spans."""

from typing import Annotated, Literal

from msgspec import Meta

from gatepost.config.section import SettingsSection


class LogSettings(SettingsSection, frozen=True, kw_only=True):
    """The log of the running gateway."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="Lowest level shown: debug, info, warning or error."),
    ] = "info"
    format: Annotated[
        Literal["json", "text"], Meta(description="json for machines, text for people.")
    ] = "json"
    file: Annotated[
        str,
        Meta(
            description="File that gets the log; it is renewed at 10 MB, and three old ones are"
            " kept. Default: standard error."
        ),
    ] = ""


class AlertsSettings(SettingsSection, frozen=True, kw_only=True):
    """Thresholds at which the gateway raises an incident by itself."""

    backlog_secs: Annotated[
        float,
        Meta(gt=0, le=86_400, description="How long a backlog may grow before it is an incident."),
    ] = 600.0
    backlog_least: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000_000,
            description="Least growth in that time, in messages.",
        ),
    ] = 10


class TelemetrySettings(SettingsSection, frozen=True, kw_only=True):
    """OpenTelemetry spans of messages; needs the extra gatepost[telemetry]."""

    enabled: Annotated[bool, Meta(description="Record spans and export them.")] = False
    exporter: Annotated[
        Literal["otlp", "console"],
        Meta(description="otlp sends spans to a collector over HTTP, console prints them."),
    ] = "otlp"
    endpoint: Annotated[
        str,
        Meta(
            pattern=r"^(https?://[^\s]{1,500})?\Z",
            description="URL of the collector for traces. Default: from OTEL_EXPORTER_OTLP_*,"
            " else http://localhost:4318/v1/traces.",
        ),
    ] = ""
