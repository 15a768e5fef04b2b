"""All settings of a gateway, by section.

The limits and the description of a setting are declared with its field and nowhere else: loading.py
checks the limits, and the settings file that `gatepost init` writes shows the descriptions.
"""

import ipaddress
import re
import socket
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal, Self

import msgspec
from msgspec import Meta

from gatepost.config.a2a_settings import A2aSettings
from gatepost.config.bootstrap_settings import BootstrapSettings
from gatepost.config.hub_settings import HubSettings
from gatepost.config.loading import load_tree
from gatepost.config.mesh_settings import MeshSettings
from gatepost.config.monitoring_settings import AlertsSettings, LogSettings, TelemetrySettings
from gatepost.config.section import SettingsSection
from gatepost.config.toml_text import toml_value
from gatepost.config.transport_settings import TorSettings, WireGuardSettings
from gatepost.errors import ConfigError

_TEN_YEARS_SECS = 10 * 365 * 86_400
_MIB = 1024 * 1024
_GIB = 1024 * _MIB
_ORIGIN_PATTERN = r"https?://[A-Za-z0-9._\[\]:-]{1,260}"


def default_node_id() -> str:
    """Return the machine's name, reduced to the characters of a node id."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", socket.gethostname())[:64].strip("-._") or "node"


def _home_state_dir() -> Path:
    return Path.home() / ".gatepost"


class NodeSettings(SettingsSection, frozen=True, kw_only=True):
    """The identity of this gateway, and the folder of its durable state."""

    id: Annotated[
        str,
        Meta(
            pattern=r"^([A-Za-z0-9][A-Za-z0-9_.-]*)?\Z",
            max_length=64,
            description="Name in the mesh: letters, digits, `_`, `.`, `-`. Default: the name that"
            " the journal has; a new gateway takes the host name.",
        ),
    ] = ""
    state_dir: Annotated[
        Path,
        Meta(
            description="Folder for journal, blobs, keys, token and socket."
            " Default: $GATEPOST_HOME, else ~/.gatepost."
        ),
    ] = msgspec.field(default_factory=_home_state_dir)
    capabilities: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*\Z", max_length=128)], ...],
        Meta(
            max_length=64,
            description="Capabilities of this machine that a route may require, such as `gpu`.",
        ),
    ] = ()
    stop_secs: Annotated[
        float,
        Meta(
            gt=0,
            le=3600,
            description="How long the gateway may take to stop in order. After that its process"
            " ends at once, which loses nothing that was answered.",
        ),
    ] = 8.0


class ListenSettings(SettingsSection, frozen=True, kw_only=True):
    """The addresses at which agents on this machine reach the gateway."""

    host: Annotated[
        str,
        Meta(min_length=1, max_length=255, description="Address to bind for HTTP and WebSocket."),
    ] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535, description="Port to bind; 0: any free port.")] = (
        7433
    )
    allow_public: Annotated[
        bool, Meta(description="Permit a host that other machines can reach.")
    ] = False
    allow_plain: Annotated[
        bool,
        Meta(
            description="Permit other machines to use the local API over HTTP without TLS, on a"
            " network with its own encryption: the token could be read on the way."
        ),
    ] = False
    unix_socket: Annotated[bool, Meta(description="Also serve a Unix socket inside state_dir.")] = (
        True
    )
    drop_folder: Annotated[
        bool, Meta(description="Also take messages from files in a drop folder inside state_dir.")
    ] = True

    tls_cert: Annotated[
        str,
        Meta(
            max_length=4096,
            description="File with the certificate chain, in the state directory or with its whole"
            " path; empty: plain HTTP.",
        ),
    ] = ""
    tls_key: Annotated[
        str, Meta(max_length=4096, description="File with the certificate's private key.")
    ] = ""

    def __post_init__(self) -> None:
        if not self.allow_public and not is_loopback(self.host):
            raise ConfigError(
                f"listen.host is {self.host!r}, which other machines may reach: keep 127.0.0.1, "
                "or set listen.allow_public = true if they should reach it"
            )
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ConfigError("listen.tls_cert and listen.tls_key go together: set both or neither")


class MailboxSettings(SettingsSection, frozen=True, kw_only=True):
    """Retries, timeouts and capacity of each agent's mailbox."""

    max_retries: Annotated[
        int,
        Meta(
            ge=0, le=100, description="Redeliveries after the first delivery before a dead letter."
        ),
    ] = 3
    base_backoff_secs: Annotated[
        float,
        Meta(ge=0, le=86_400, description="Wait before the first redelivery; doubles each time."),
    ] = 5.0
    inflight_timeout_secs: Annotated[
        float,
        Meta(gt=0, le=86_400, description="Duration of the lease on a message an agent has taken."),
    ] = 30.0
    ttl_secs: Annotated[
        float,
        Meta(gt=0, le=_TEN_YEARS_SECS, description="Age at which a waiting message expires."),
    ] = 86_400.0
    max_pending: Annotated[
        int,
        Meta(ge=1, le=1_000_000_000, description="Waiting messages at which a mailbox is full."),
    ] = 1_000_000

    @property
    def retry_horizon_secs(self) -> float:
        """The longest time past its TTL at which a message can still be delivered again.

        Backoffs end with the TTL, but every delivery may last until the end of its lease.
        """
        backoffs = self.base_backoff_secs * (2.0**self.max_retries - 1)
        leases = self.inflight_timeout_secs * (self.max_retries + 1)
        return min(backoffs, self.ttl_secs) + leases


class JournalSettings(SettingsSection, frozen=True, kw_only=True):
    """Writing, checking and pruning of the gateway's journal."""

    retain_acked_secs: Annotated[
        float,
        Meta(ge=0, le=_TEN_YEARS_SECS, description="How long to keep the payload of acked mail."),
    ] = 3600.0
    tombstone_secs: Annotated[
        float,
        Meta(
            ge=0,
            le=2 * _TEN_YEARS_SECS,
            description="How long to remember the id of finished mail, so that it is never taken"
            " twice. At least mailbox.ttl_secs plus the time all retries can take.",
        ),
    ] = 172_800.0
    sweep_batch: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Most rows per pruning transaction.")
    ] = 1000
    group_max: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Most operations that share one fsync.")
    ] = 4096
    stall_secs: Annotated[
        float,
        Meta(
            gt=0,
            le=3600,
            description="How long one commit may take before /readyz answers 503. After six times"
            " as long /healthz does too.",
        ),
    ] = 10.0
    integrity_check: Annotated[
        Literal["quick", "full", "off"],
        Meta(description="Integrity check of the journal at start: quick, full or off."),
    ] = "quick"


class LimitsSettings(SettingsSection, frozen=True, kw_only=True):
    """Limits on the requests of one client."""

    max_body_bytes: Annotated[
        int, Meta(ge=1024, le=_GIB, description="Largest request body or WebSocket frame.")
    ] = _MIB
    max_payload_inline: Annotated[
        int, Meta(ge=0, le=_GIB, description="Payloads of more bytes are stored as blobs.")
    ] = 65_536
    max_blob_bytes: Annotated[
        int, Meta(ge=0, le=1024 * _GIB, description="Largest payload stored as a blob.")
    ] = 64 * _MIB
    rate_per_sec: Annotated[
        float, Meta(gt=0, le=1e9, description="Operations per second one token may sustain.")
    ] = 200_000.0
    burst: Annotated[
        int, Meta(ge=1, le=1_000_000_000, description="Operations one token may make at once.")
    ] = 200_000
    wrong_tokens_per_min: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000_000,
            description="Wrong tokens that one address may show before it has to wait.",
        ),
    ] = 60
    max_connections: Annotated[
        int,
        Meta(ge=1, le=1_000_000, description="Connections of clients and gateways at a time."),
    ] = 1024
    max_unauthenticated: Annotated[
        int,
        Meta(
            ge=16,
            le=1_000_000,
            description="Connections besides these that have not shown a valid token yet. When"
            " there are more, the oldest of the busiest address is closed.",
        ),
    ] = 1024
    max_agents: Annotated[
        int,
        Meta(
            ge=1,
            le=12_000,
            description="Agents of this gateway; each has a record in the room.",
        ),
    ] = 10_000
    max_mailboxes: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="Mailboxes; beyond that, only registered agents get one.",
        ),
    ] = 20_000
    request_timeout_secs: Annotated[
        float, Meta(gt=0, le=86_400, description="Deadline of a request that does not wait.")
    ] = 30.0
    long_poll_max_secs: Annotated[
        float, Meta(ge=0, le=86_400, description="Longest wait a dequeue may ask for.")
    ] = 60.0

    def __post_init__(self) -> None:
        for larger in ("max_body_bytes", "max_blob_bytes"):
            if getattr(self, larger) < self.max_payload_inline:
                raise ConfigError(
                    f"limits.{larger} must be at least limits.max_payload_inline"
                    f" ({self.max_payload_inline}): raise the former or lower the latter"
                )


class RoomSettings(SettingsSection, frozen=True, kw_only=True):
    """Connections between this gateway and other gateways."""

    profile: Annotated[
        Literal["production", "development"],
        Meta(description="Strictness of admission: production or development."),
    ] = "production"
    require_proof: Annotated[
        bool, Meta(description="Nodes must prove their key to join; production requires it.")
    ] = True
    allow_keyless: Annotated[
        bool,
        Meta(
            description="Admit nodes that send no key; they only read the room. For development"
            " on one machine: not with listen.allow_public."
        ),
    ] = False
    public_url: Annotated[
        str,
        Meta(
            pattern=rf"^({_ORIGIN_PATTERN})?\Z",
            max_length=300,
            description="Address that other gateways dial, as https://HOST:PORT. Default: the"
            " listener's own address, unless it is a wildcard such as 0.0.0.0.",
        ),
    ] = ""
    seeds: Annotated[
        tuple[Annotated[str, Meta(pattern=rf"^{_ORIGIN_PATTERN}\Z", max_length=300)], ...],
        Meta(
            max_length=64,
            description="Gateways to dial besides those in the room, as https://HOST:PORT.",
        ),
    ] = ()
    allow_plain: Annotated[
        bool,
        Meta(description="Permit HTTP without TLS between gateways on different machines."),
    ] = False
    dial_loopback: Annotated[
        bool,
        Meta(
            description="Dial members whose address in the room is on this machine, although this"
            " gateway's own address is not."
        ),
    ] = False
    tls_ca: Annotated[
        str,
        Meta(
            max_length=4096,
            description="File with certificates to trust for other gateways, besides the system's,"
            " in the state directory or with its whole path.",
        ),
    ] = ""
    allowed_origins: Annotated[
        tuple[Annotated[str, Meta(pattern=rf"^{_ORIGIN_PATTERN}\Z", max_length=300)], ...],
        Meta(
            max_length=64,
            description="Web origins whose pages may open a WebSocket and call the HTTP API here,"
            " with a token, besides this gateway's own.",
        ),
    ] = ()
    joins_per_sec: Annotated[
        float, Meta(gt=0, le=1e6, description="Join attempts per second one address may sustain.")
    ] = 10.0
    join_burst: Annotated[
        int,
        Meta(ge=1, le=1_000_000, description="Join attempts one address may make at once."),
    ] = 100
    sweep_every_secs: Annotated[
        int,
        Meta(
            ge=1,
            le=86_400,
            description="How often ended records are removed from the room. This and the three"
            " times below count on the gateway that coordinates the room.",
        ),
    ] = 600
    keep_tombstones_secs: Annotated[
        float, Meta(ge=1, le=3.15e8, description="How long the room keeps removed records.")
    ] = 30 * 86_400.0
    keep_invites_secs: Annotated[
        float, Meta(ge=1, le=3.15e8, description="How long the room keeps ended invites.")
    ] = 7 * 86_400.0
    keep_reviews_secs: Annotated[
        float, Meta(ge=1, le=3.15e8, description="How long the room keeps closed reviews.")
    ] = 30 * 86_400.0

    def __post_init__(self) -> None:
        if self.profile == "production" and not self.require_proof:
            raise ConfigError(
                'room.require_proof is false, which room.profile = "production" does not permit:'
                " leave it true, or choose the development profile"
            )
        if self.profile == "production" and self.allow_keyless:
            raise ConfigError(
                'room.allow_keyless is true, which room.profile = "production" does not permit:'
                " leave it false, or choose the development profile"
            )


class ArchiveSettings(SettingsSection, frozen=True, kw_only=True):
    """The permanent archive of the outbox, as Parquet files."""

    uri: Annotated[
        str,
        Meta(
            max_length=1024,
            description="Folder, or a URI such as s3://bucket/folder; empty: no archive, and the"
            " outbox is never pruned.",
        ),
    ] = ""
    payloads: Annotated[
        Literal["none", "encrypted"],
        Meta(description="Archive events without payloads, or with encrypted ones."),
    ] = "none"
    max_rows: Annotated[int, Meta(ge=1, le=10_000_000, description="Events in a full segment.")] = (
        100_000
    )
    max_age_secs: Annotated[
        float,
        Meta(
            gt=0, le=_TEN_YEARS_SECS, description="Age by which an event is archived at the latest."
        ),
    ] = 300.0
    every_secs: Annotated[
        float, Meta(gt=0, le=86_400, description="Pause between two checks for events to archive.")
    ] = 10.0
    keep_secs: Annotated[
        float,
        Meta(
            ge=0,
            le=_TEN_YEARS_SECS,
            description="Minimum time an event stays in the journal, even if it is archived.",
        ),
    ] = 7 * 86_400.0


# A silent link ends after this part of the time for which a sender waits for an owner. Pings are
# rare enough for a busy machine.
_SILENCE_OF_WAIT = 0.6
_SHORTEST_SILENCE_SECS, _LONGEST_SILENCE_SECS = 5.0, 40.0


class DeliverySettings(SettingsSection, frozen=True, kw_only=True):
    """Retries and timeouts of deliveries to other gateways."""

    accept_timeout_secs: Annotated[
        float,
        Meta(gt=0, le=86_400, description="Wait for `accepted` before a message is sent again."),
    ] = 20.0
    base_backoff_secs: Annotated[
        float, Meta(ge=0, le=86_400, description="Wait before the first retry; doubles each time.")
    ] = 2.0
    max_backoff_secs: Annotated[
        float, Meta(gt=0, le=86_400, description="The longest wait between two retries.")
    ] = 300.0
    max_attempts: Annotated[
        int,
        Meta(ge=1, le=1000, description="Attempts at an online owner before a dead letter."),
    ] = 15
    sla_secs: Annotated[
        float,
        Meta(
            gt=0,
            le=_TEN_YEARS_SECS,
            description="Time from `accepted` to the end of the turn; longer is an incident.",
        ),
    ] = 600.0
    abandon_after_days: Annotated[
        float,
        Meta(
            gt=0,
            le=3650,
            description="Time after `accepted` at which a message is given up if its owner never"
            " reports the end of the turn.",
        ),
    ] = 7.0
    offline_secs: Annotated[
        float,
        Meta(gt=0, le=86_400, description="Silence after which a gateway is considered offline."),
    ] = 45.0

    @property
    def link_silence_secs(self) -> float:
        """How long a link may be silent, or its gateway suspended, before the link is ended.

        This is well before a sender gives up messages that went over it.
        """
        wait = self.offline_secs + self.accept_timeout_secs
        return min(_LONGEST_SILENCE_SECS, max(_SHORTEST_SILENCE_SECS, wait * _SILENCE_OF_WAIT))

    @property
    def verdict_wait_secs(self) -> float:
        """How long the sender of an expired message waits for a receipt of its owner.

        By then a link without an answer has ended, with any settings.
        """
        wait = self.offline_secs + self.accept_timeout_secs
        return max(wait, self.link_silence_secs / _SILENCE_OF_WAIT)

    max_held_events: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000_000,
            description="Most events of one gateway that are taken here and cannot be accepted yet."
            " Further ones have to wait at their sender.",
        ),
    ] = 100_000
    max_held_bytes: Annotated[
        int,
        Meta(ge=_MIB, le=1024 * _GIB, description="Most bytes of such events of one gateway."),
    ] = 256 * _MIB
    transfer_grace_secs: Annotated[
        float,
        Meta(
            ge=0,
            le=3600,
            description="How long an agent must be without a consumer here before a gateway of"
            " ownership.takers that asks for it gets it.",
        ),
    ] = 2.0
    cut_off_secs: Annotated[
        float,
        Meta(
            gt=0,
            le=_TEN_YEARS_SECS,
            description="Absence after which the outbox no longer waits for a reader.",
        ),
    ] = 30 * 86_400.0
    window_bytes: Annotated[
        int,
        Meta(
            ge=1024,
            le=_GIB,
            description="Most bytes of an outbox on their way to one reader at a time.",
        ),
    ] = 4 * _MIB
    compress_links: Annotated[
        bool,
        Meta(
            description="Compress the connection with every gateway that does so too. That saves"
            " more than half of the bytes, and takes a tenth more CPU.",
        ),
    ] = False


class OwnershipSettings(SettingsSection, frozen=True, kw_only=True):
    """The agents of this gateway, and the nodes that may take them over."""

    dead_after_secs: Annotated[
        float,
        Meta(
            gt=0,
            le=10 * 365 * 86_400,
            description="Silence of a gateway after which a backbone node may give away its"
            " agents.",
        ),
    ] = 86_400.0
    takers: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^(\*|[A-Za-z0-9][A-Za-z0-9._-]{0,127})\Z")], ...],
        Meta(
            max_length=256,
            description="Nodes that get an agent of this gateway when they ask for it, if nobody"
            " serves it here. `*` stands for every node of the room.",
        ),
    ] = ()


class Settings(SettingsSection, frozen=True, kw_only=True):
    """The whole tree. `load` checks each value; the constructor checks that they agree."""

    node: NodeSettings = msgspec.field(default_factory=NodeSettings)
    listen: ListenSettings = msgspec.field(default_factory=ListenSettings)
    mailbox: MailboxSettings = msgspec.field(default_factory=MailboxSettings)
    delivery: DeliverySettings = msgspec.field(default_factory=DeliverySettings)
    journal: JournalSettings = msgspec.field(default_factory=JournalSettings)
    limits: LimitsSettings = msgspec.field(default_factory=LimitsSettings)
    room: RoomSettings = msgspec.field(default_factory=RoomSettings)
    bootstrap: BootstrapSettings = msgspec.field(default_factory=BootstrapSettings)
    mesh: MeshSettings = msgspec.field(default_factory=MeshSettings)
    wireguard: WireGuardSettings = msgspec.field(default_factory=WireGuardSettings)
    tor: TorSettings = msgspec.field(default_factory=TorSettings)
    ownership: OwnershipSettings = msgspec.field(default_factory=OwnershipSettings)
    archive: ArchiveSettings = msgspec.field(default_factory=ArchiveSettings)
    hub: HubSettings = msgspec.field(default_factory=HubSettings)
    a2a: A2aSettings = msgspec.field(default_factory=A2aSettings)
    alerts: AlertsSettings = msgspec.field(default_factory=AlertsSettings)
    telemetry: TelemetrySettings = msgspec.field(default_factory=TelemetrySettings)
    log: LogSettings = msgspec.field(default_factory=LogSettings)

    def __post_init__(self) -> None:
        if self.room.allow_keyless and self.listen.allow_public:
            raise ConfigError(
                "room.allow_keyless and listen.allow_public exclude each other: a node without a"
                " key cannot be told from another, so keep one of them false"
            )
        least = self.mailbox.ttl_secs + self.mailbox.retry_horizon_secs
        if self.journal.tombstone_secs < least:
            raise ConfigError(
                f"journal.tombstone_secs is {toml_value(self.journal.tombstone_secs)}, but with "
                f"these mailbox settings a message can be delivered for {toml_value(least)} s: "
                "set it to at least that, or lower mailbox.ttl_secs"
            )

    def named_file(self, setting: str) -> Path | None:
        """The file a setting names: `~` is the home folder, other paths are in the state directory.

        None if the setting is empty.
        """
        return self.node.state_dir / Path(setting).expanduser() if setting else None

    @classmethod
    def load(cls, path: Path | None, env: Mapping[str, str]) -> Self:
        """Load settings from the file (None: no file) and the environment, or raise ConfigError."""
        return load_tree(cls, path, env)


@lru_cache(maxsize=1024)
def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
