"""The numbers in the table of bounds of docs/security.md are those of the code."""

import re

from gatepost.config import LimitsSettings
from gatepost.delivery import abuse, incidents
from gatepost.events import json_payload
from gatepost.gateway.admin import agent_blobs, agent_session_calls
from gatepost.gateway.api import frame_channel
from gatepost.gateway.monitoring import logs
from gatepost.links import (
    log_part,
    outbox_feed,
    outbox_replica,
    reach_part,
    relay_host,
    trace_part,
)
from gatepost.links.connections import peer_connections
from gatepost.listening import bounded_http, frame_limits, open_files
from gatepost.listening.connection_pool import MAX_PER_HOLDER
from gatepost.mesh import datagram_judge
from gatepost.mesh.service import stranger_refusals
from gatepost.mesh.service.backend_health import MAX_REPORTS_PER_NODE
from gatepost.mesh.transport import MAX_DATAGRAM_BYTES
from gatepost.mesh.transports import datagram_streams
from gatepost.room import cost_limit, writer_quota
from gatepost.room.findings import MAX_OF_WRITER
from gatepost.tasks import executed_tasks, skill_installs
from gatepost.tasks.capabilities import contract
from gatepost.tasks.contract_checks import contract_pool
from gatepost.tasks.service import large_requests, session_sockets
from tests.security.test_bounds_table import HOUR, SOURCES

SOCKET = "session of the hub, at its socket"
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

# Row → the numbers in it, by the code.
NUMBERS: dict[str, tuple[str, ...]] = {
    "connection of a stranger": (
        f"head {bounded_http._MAX_HEAD_BYTES // KIB} KiB",
        f"handshake and head {bounded_http._HEAD_SECS:g} s",
        f"body {bounded_http._BODY_SECS:g} s",
        f"unread answer {bounded_http._UNREAD_SECS:g} s",
    ),
    "holder of a token, connections": (f"{MAX_PER_HOLDER}",),
    "connection of an agent, operations": (
        f"{frame_channel._MAX_UNANSWERED:,} that are not answered",
        f"{frame_channel._MAX_UNSENT} answers",
    ),
    "connection of an agent, waits": (f"{frame_channel._MAX_WAITS:,}",),
    "session of an external agent, messages": (
        f"{LimitsSettings().max_payload_inline // KIB} KiB inline",
    ),
    "session of an external agent, blobs": (
        {4: "unsent blobs four times that"}[agent_blobs._UNSENT_BLOBS],
        {2: "two uploads"}[agent_blobs._AT_ONCE_PER_AGENT],
    ),
    "agent, large inputs of its tasks": (
        f"nested {json_payload.MAX_NESTING} levels",
        {(2, 4): "two written at a time, four of all"}[
            large_requests._AT_ONCE_PER_AGENT, large_requests._AT_ONCE
        ],
    ),
    "session of an external agent, calls": (f"{agent_session_calls._MAX_CALLS} at a time",),
    SOCKET: (
        f"head {bounded_http._MAX_HEAD_BYTES // KIB} KiB",
        f"{open_files._PER_SESSION} connections",
        f"{open_files._MOST_OF_SESSIONS // open_files._PER_SESSION} `hub.max_sessions`",
        f"{session_sockets._REQUESTS_AT_ONCE} requests at a time",
    ),
    "session of the hub, output": (f"nested {json_payload.MAX_NESTING} levels",),
    "streams of datagrams through Tor": (
        f"{MAX_DATAGRAM_BYTES:,} bytes",
        f"{datagram_streams._MAX_INCOMING} each way",
        f"{datagram_streams._MAX_QUEUED} datagrams",
        f"idle {datagram_streams._IDLE_SECS / 60:g} min",
        f"a write {datagram_streams._WRITE_SECS:g} s",
        f"a connection {datagram_streams._CONNECT_SECS:g} s",
    ),
    "node, in the room": (
        f"{writer_quota.MAX_BYTES_PER_WRITER // MIB} MiB in all",
        f"{writer_quota.MAX_KEYS_PER_WRITER:,} in all",
    ),
    "node, time to check its room messages": (f"{cost_limit.COST_BURST_SECS:g} s at once",),
    "node, on a link": (
        f"{peer_connections.MAX_PER_NODE} connections",
        f"{frame_limits.MAX_PIECES:,} pieces",
        f"{frame_limits.SLICE_SECS * 1000:g} ms",
    ),
    "any source, incidents": (
        f"{incidents._MOST_OF_CLASS:,} of a class",
        f"{incidents._MOST_OF_PEER} of them",
    ),
    "any source, abuse": (
        f"{abuse._MAX_NAMED} sources",
        f"beyond {stranger_refusals._USUAL_RATE:g} a second",
    ),
    "any source, lines of the log": (
        f"{logs._MAX_CHARS:,} characters",
        f"{logs._MAX_FILE_BYTES // 10**6} MB",
        {4: "four files"}[logs._OLD_FILES + 1],
    ),
    "node, skills it is asked to install": (
        f"{contract.MAX_CONTRACT_BYTES // KIB} KiB",
        f"{skill_installs.MAX_OPEN_OF_NODE} open",
        "{}, {}, {}, {} and {} s".format(*skill_installs._REPEAT_SECS),
    ),
    "node, skills it distributes": (
        f"{skill_installs.MAX_OFFERS_OF_NODE}",
        f"{skill_installs._ANSWER_MS // 1000} s",
    ),
    "node, reports in the room": (f"newest {MAX_OF_WRITER}",),
    "node, cancellations before their tasks": (f"{executed_tasks._MAX_EARLY_CANCELS:,}",),
    "node, contracts": (
        f"{contract.MAX_CONTRACT_BYTES // KIB} KiB each",
        f"{contract.MAX_BYTES // MIB} MiB in all",
        f"{contract.MAX_ALL_BYTES // MIB} MiB of all",
        f"{contract.MAX_CONTRACTS}",
        f"{contract.MAX_ALL_CONTRACTS:,} of all",
    ),
    "node, contents to check against contracts": (
        f"{contract_pool.QUICK.memory_bytes // MIB} MiB",
        f"{contract_pool.SLOW.memory_bytes // GIB} GiB",
        {2: "one of two processes"}[contract_pool.QUICK_PROCESSES],
        f"{contract_pool._MAX_OF_SOURCE:,} contents",
        f"{contract_pool._MAX_BYTES_OF_SOURCE // MIB} MiB",
        f"{contract_pool._MAX_WAITING:,}",
        f"{contract_pool._MAX_WAITING_BYTES // MIB} MiB of all",
    ),
    "node, whose outbox is relayed": (
        f"{outbox_replica.MAX_REPLICA_BYTES // MIB} MiB",
        f"{relay_host.REPLICA_KEEP_MS // HOUR} h",
    ),
    "sender of mesh datagrams": (
        f"{MAX_DATAGRAM_BYTES:,} bytes",
        f"{datagram_judge._PEER_RATE:g} a second",
        f"{datagram_judge._ADDRESS_RATE:g}, and {datagram_judge._UNPROVEN_RATE:g} from all",
        f"{datagram_judge._ANNOUNCE_RATE:g} announcements",
    ),
    "node, confirmed offers named to it early": (f"{outbox_feed.MAX_CONFIRMED:,} wait",),
    "node, logs of its tasks": (
        f"{log_part._PIECES_AT_ONCE} pieces, then {log_part._PIECES_PER_SEC:g} a second",
        {4: "four at once"}[log_part._UNANSWERED],
    ),
    "node, questions whether it is reached": (
        f"{reach_part._REQUESTS_AT_ONCE} at once",
        f"then one in {1 / reach_part._REQUESTS_PER_SEC:g} s",
    ),
    "node, traces and proofs": (
        f"{trace_part._EVENTS_AT_ONCE} at once, then {trace_part._EVENTS_PER_SEC:g} a second",
        f"counts as {trace_part._PROOF_EVENTS}",
    ),
    "node, unhealthy agents it reports": (f"{MAX_REPORTS_PER_NODE}",),
}


def test_bytes_are_those_of_memory_or_of_the_disk() -> None:
    for name, (bytes_, *_) in SOURCES.items():
        if bytes_:
            assert re.match(r"(memory|disk|memory and disk): ", bytes_), name


def test_each_source_that_opens_files_says_how_many() -> None:
    files = {name for name, (_, _, files, _) in SOURCES.items() if files}
    opened = re.compile(r"connections?$|^connection of a stranger|socket|on a link|blobs|streams")
    assert {name for name in SOURCES if opened.search(name)} <= files
    (of_session,) = re.findall(r"and (\d+) for the session", SOURCES[SOCKET][2])
    assert int(of_session) == open_files._FILES_OF_SESSION


def test_the_numbers_of_the_table_are_those_of_the_code() -> None:
    for name, numbers in NUMBERS.items():
        row = " | ".join(SOURCES[name])
        for number in numbers:
            assert re.search(rf"(?<![\d,.]){re.escape(number)}(?!\d|,\d)", row), (name, number)
