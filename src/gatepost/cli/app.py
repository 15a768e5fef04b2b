"""All commands with their help. A command's module is loaded only when the command runs."""

from itertools import count

from cyclopts import App, Group

from gatepost import __version__

_GATEWAY_GROUP = Group("Gateway", sort_key=1)
_MESSAGES_GROUP = Group("Messages", sort_key=2)
_PEERS_GROUP = Group("Other gateways", sort_key=3)
_OPERATIONS_GROUP = Group("Operations", sort_key=4)
_SHELL_GROUP = Group("Shell", sort_key=5)

app = App(
    name="gatepost",
    help="""Durable messages between agents.

Start here:

  gatepost up                           run a gateway (leave it running)
  gatepost agent add bob                let bob receive mail
  gatepost send bob "hello"             send bob a message
  gatepost inbox bob --take             take it, and get its lease handle
  gatepost ack bob HANDLE --reply hi    end the turn

Exit codes: 0 done, 1 failed or timed out, 2 wrong usage, 3 no gateway.
""",
    version=__version__,
    help_format="plaintext",
)
app["--help"].group = _SHELL_GROUP
app["--version"].group = _SHELL_GROUP

_sort_keys = count()


def _add_command(to: App, name: str, where: str, *, help: str, group: Group | None = None) -> None:
    """Add a lazily loaded command; the help lists commands in the order they are added."""
    path = f"gatepost.cli.commands.{where}"
    to.command(path, name=name, help=help, group=group, sort_key=next(_sort_keys))


def _add_family(name: str, *, help: str, group: Group = _OPERATIONS_GROUP) -> App:
    """Add a command that has subcommands."""
    family = App(name=name, help=help, group=group, sort_key=next(_sort_keys))
    app.command(family)
    return family


_add_command(
    app,
    "up",
    "up:run_gateway",
    group=_GATEWAY_GROUP,
    help="""Run the gateway in the foreground until Ctrl-C.

Settings come from gatepost.toml in the state directory. GATEPOST_* variables
override the file, and the options below override both.

For example:

  gatepost up
  gatepost up --port 0 --state-dir /tmp/try
  GATEPOST_MAILBOX__MAX_RETRIES=5 gatepost up
""",
)
_add_command(
    app,
    "init",
    "init:write_settings_file",
    group=_GATEWAY_GROUP,
    help="""Write a settings file that explains every setting.

For example:

  gatepost init
  gatepost init --state-dir /srv/gatepost --node-id lab-1
""",
)
_add_command(
    app,
    "status",
    "status:show_status",
    group=_GATEWAY_GROUP,
    help="""Show the state of the gateway and of its mailboxes.

Exits with 1 if the gateway runs but does not accept messages.

For example:

  gatepost status
  gatepost status --json | jq .gateway.waiting
""",
)
_add_command(
    app,
    "send",
    "send:send_message",
    group=_MESSAGES_GROUP,
    help="""Send a message to an agent.

Prints the message's id and state, and the reply if there is one. With --wait
it exits with 0 only if the message was accepted or processed in time.

For example:

  gatepost send bob "hello"
  gatepost send bob '{"n": 1}' --json-payload --wait processed --timeout 60
  git diff | gatepost send reviewer -
  gatepost send bob --file photo.jpg
  gatepost send --to bob --to carol "both of you"
  gatepost send --broadcast "all of you" --wait accepted
""",
)
_add_command(
    app,
    "inbox",
    "inbox:show_inbox",
    group=_MESSAGES_GROUP,
    help="""List an agent's waiting mail, or take it.

Listing changes nothing. Taking leases the messages: end each turn with
`gatepost ack` or `gatepost nack` before the lease expires, or the message is
delivered again.

For example:

  gatepost inbox bob
  gatepost inbox bob --take --limit 5 --wait 30
""",
)
_add_command(
    app,
    "ack",
    "settle:ack_turns",
    group=_MESSAGES_GROUP,
    help="""Ack leased messages: their turns ended well.

The sender learns that its message was processed.

For example:

  gatepost ack bob HANDLE
  gatepost ack bob HANDLE --reply "done"
  gatepost ack bob --msg-id ID
""",
)
_add_command(
    app,
    "nack",
    "settle:nack_turns",
    group=_MESSAGES_GROUP,
    help="""Nack leased messages: their turns failed.

Each message is retried later, or becomes a dead letter.

For example:

  gatepost nack bob HANDLE --reason "cannot reach the database"
""",
)
_add_command(
    app,
    "fetch",
    "fetch:fetch_payload",
    group=_MESSAGES_GROUP,
    help="""Download a payload that was too large to travel inside its message.

For example:

  gatepost fetch sha256:DIGEST --output photo.jpg
""",
)
_add_command(
    app,
    "trace",
    "trace:show_trace",
    group=_MESSAGES_GROUP,
    help="""Show every step of a message, from send to the end of its turn, at every gateway.

Name a message by its id, or a conversation by its correlation id. Gateways that
cannot be reached are listed.

For example:

  gatepost trace ID
  gatepost trace order-4711 --conversation
""",
)

_add_command(
    app,
    "invite",
    "room:invite_node",
    group=_PEERS_GROUP,
    help="""Invite another gateway into this one's room.

Prints the invite, a secret that works once, and how to use it. A terminal also
shows it as a QR code. The first invite founds the room.

For example:

  gatepost invite --tier edge --node mbp-jane
  gatepost invite --node mbp-jane > invite.txt
""",
)
_add_command(
    app,
    "invites",
    "room:list_invites",
    group=_PEERS_GROUP,
    help="""List the invites this gateway issued.

For example:

  gatepost invites
""",
)
_add_command(
    app,
    "withdraw",
    "room:withdraw_invite",
    group=_PEERS_GROUP,
    help="""Withdraw an invite that was not used yet.

For example:

  gatepost withdraw 3618f0c1d4f9b164
""",
)
_add_command(
    app,
    "join",
    "room:join_room",
    group=_PEERS_GROUP,
    help="""Join the room of the gateway that issued an invite.

The invite is read from a file or from standard input. Other users of the machine
could see it on the command line.

For example:

  gatepost join https://vps-jane:7433 --token -
  gatepost join https://vps-jane:7433 --token-file invite.txt
""",
)
_add_command(
    app,
    "nodes",
    "room:list_nodes",
    group=_PEERS_GROUP,
    help="""List the nodes of the room.

For example:

  gatepost nodes
""",
)
_add_command(
    app,
    "revoke",
    "room:revoke_node",
    group=_PEERS_GROUP,
    help="""Revoke a node: it is disconnected now and can never join again.

For example:

  gatepost revoke mbp-jane --reason "laptop lost"
""",
)

_room = _add_family(
    "room",
    help="""Show, watch, verify and rotate the room that all gateways share.

For example:

  gatepost room show
""",
    group=_PEERS_GROUP,
)
_add_command(
    _room,
    "show",
    "room:show_room",
    help="""Show every record of the room.

For example:

  gatepost room show
  gatepost room show --json | jq .records
""",
)
_add_command(
    _room,
    "watch",
    "room:watch_room",
    help="""Print every record as it changes, until Ctrl-C.

For example:

  gatepost room watch
  gatepost room watch --json
""",
)
_add_command(
    _room,
    "verify",
    "room:verify_room",
    help="""Check the signature of every record this gateway keeps.

Exits with 1 if one is invalid.

For example:

  gatepost room verify
""",
)

_add_command(
    _room,
    "rotate",
    "room:rotate_room",
    help="""Move the room to a new document without records that are no longer needed.

All gateways follow; a gateway that is offline follows when it is back.

For example:

  gatepost room rotate
""",
)

_agent = _add_family(
    "agent",
    help="""Add, list, remove and invite agents.

For example:

  gatepost agent add bob
""",
)
_add_command(
    _agent,
    "add",
    "agents:add_agents",
    help="""Register agents, so that mail can be sent to them.

A running agent registers itself when it connects; use this for agents that have
never connected.

For example:

  gatepost agent add bob alice
  gatepost agent add bob --standby
""",
)
_add_command(
    _agent,
    "list",
    "agents:list_agents",
    help="""List the gateway's agents.

For example:

  gatepost agent list
  gatepost agent list --room
  gatepost agent list --external
""",
)
_add_command(
    _agent,
    "claim",
    "agents:claim_agent",
    help="""Move an agent of the room to this gateway.

The gateway it lives behind is asked to let it go, even if the agent is being
served there; waiting mail is forwarded. If that gateway is gone for good, a
backbone node can override it.

For example:

  gatepost agent claim bob
  gatepost agent claim bob --override
  gatepost agent claim bob --override --node lab-1
""",
)
_add_command(
    _agent,
    "remove",
    "agents:remove_agent",
    help="""Remove an agent; its waiting mail becomes dead letters.

For example:

  gatepost agent remove bob
""",
)

_add_command(
    _agent,
    "invite",
    "agents:invite_agent",
    help="""Invite an external agent, one that reaches this gateway over the network.

Prints the invite, a secret that works once. Without --scope the agent may send
messages, take its own mail, and see the gateway's status.

For example:

  gatepost agent invite ci-bot
  gatepost agent invite ci-bot --scope ansible.message.send --ttl 600
""",
)
_add_command(
    _agent,
    "revoke",
    "agents:revoke_agent",
    help="""End the sessions and open invites of an external agent.

For example:

  gatepost agent revoke ci-bot
""",
)

_route = _add_family(
    "route",
    group=_PEERS_GROUP,
    help="""List, set and remove routes: fallbacks for an agent whose gateway is away.

For example:

  gatepost route set bob --fallback lab-2
""",
)
_add_command(
    _route,
    "list",
    "routes:list_routes",
    help="""List the routes of the room.

For example:

  gatepost route list
""",
)
_add_command(
    _route,
    "set",
    "routes:set_route",
    help="""Set the route to an agent, or to every agent of a node.

A fallback takes mail while the owner is away, if it hosts the agent as a
standby and has the required capabilities. A route for an agent wins over a
route for its node.

For example:

  gatepost route set bob --fallback lab-2 --fallback lab-3
  gatepost route set lab-1 --fallback lab-2 --requires gpu
  gatepost route set bob --priority 30
""",
)
_add_command(
    _route,
    "remove",
    "routes:remove_route",
    help="""Remove a route that this gateway set.

For example:

  gatepost route remove bob
""",
)

_dlq = _add_family(
    "dlq",
    help="""List, show, replay and discard dead letters.

For example:

  gatepost dlq list bob
""",
)
_add_command(
    _dlq,
    "list",
    "dead_letters:list_dead_letters",
    help="""List an agent's dead letters, oldest first.

For example:

  gatepost dlq list bob
  gatepost dlq list bob --reason-contains database
""",
)
_add_command(
    _dlq,
    "show",
    "dead_letters:show_dead_letter",
    help="""Show one dead letter with its payload.

For example:

  gatepost dlq show bob ID
""",
)
_add_command(
    _dlq,
    "replay",
    "dead_letters:replay_dead_letters",
    help="""Send dead letters again as new messages.

A replayed dead letter stays, with the id of its new message, and is not
replayed again.

For example:

  gatepost dlq replay bob ID
  gatepost dlq replay bob --sender alice --limit 10
  gatepost dlq replay bob --all --rate 5
""",
)
_add_command(
    _dlq,
    "discard",
    "dead_letters:discard_dead_letters",
    help="""Discard dead letters and their payloads.

For example:

  gatepost dlq discard bob ID
  gatepost dlq discard bob --all --yes
""",
)

_undelivered = _add_family(
    "undelivered",
    help="""List, show, replay and discard messages this gateway gave up.

These messages were sent from here, and no gateway is known to have processed
them. Messages whose turns failed are dead letters at the receiving gateway: see
dlq.

For example:

  gatepost undelivered list
""",
)
_add_command(
    _undelivered,
    "list",
    "undelivered:list_undelivered",
    help="""List messages this gateway gave up, oldest first.

For example:

  gatepost undelivered list
  gatepost undelivered list --agent bob --reason expired --older-than 3600
""",
)
_add_command(
    _undelivered,
    "show",
    "undelivered:show_undelivered",
    help="""Show one undelivered message with its payload.

For example:

  gatepost undelivered show ID
""",
)
_add_command(
    _undelivered,
    "replay",
    "undelivered:replay_undelivered",
    help="""Send undelivered messages again as new events.

The gateway that was asked last may have taken the turn after all. Without
--force, only messages are replayed that it denied, or for which none was asked.

For example:

  gatepost undelivered replay ID
  gatepost undelivered replay --agent bob --rate 5
  gatepost undelivered replay ID --force
""",
)
_add_command(
    _undelivered,
    "discard",
    "undelivered:discard_undelivered",
    help="""Discard undelivered messages and their payloads.

For example:

  gatepost undelivered discard ID
  gatepost undelivered discard --all --yes
""",
)

_add_command(
    app,
    "purge",
    "inbox:purge_mailbox",
    group=_OPERATIONS_GROUP,
    help="""Turn an agent's waiting mail into dead letters.

Messages in flight are not touched.

For example:

  gatepost purge bob
""",
)
_add_command(
    app,
    "audit",
    "status:list_audit_log",
    group=_OPERATIONS_GROUP,
    help="""List manual actions (purge, replay, removal), newest first.

For example:

  gatepost audit --limit 50
""",
)

_add_command(
    app,
    "incidents",
    "incidents:list_incidents",
    group=_OPERATIONS_GROUP,
    help="""List incidents, newest first.

For example:

  gatepost incidents
  gatepost incidents --since 3600 --class dead_letter
""",
)
_add_command(
    app,
    "eta",
    "incidents:show_eta_advice",
    group=_OPERATIONS_GROUP,
    help="""Show how long the tasks of each capability take, and the ETA it should promise.

For example:

  gatepost eta
""",
)

_reviews = _add_family(
    "reviews",
    help="""List and close reviews of capabilities that misfired.

For example:

  gatepost reviews list
""",
)
_add_command(
    _reviews,
    "list",
    "incidents:list_reviews",
    help="""List reviews of misfires, newest first.

For example:

  gatepost reviews list
  gatepost reviews list --status all
""",
)
_add_command(
    _reviews,
    "resolve",
    "incidents:resolve_review",
    help="""Mark a review as resolved.

For example:

  gatepost reviews resolve ID --note "promises 90 s now"
""",
)
_add_command(
    _reviews,
    "dismiss",
    "incidents:dismiss_review",
    help="""Mark a review as needing no action.

For example:

  gatepost reviews dismiss ID --note "a planned outage"
""",
)

_add_command(
    app,
    "backup",
    "backup:back_up_gateway",
    group=_OPERATIONS_GROUP,
    help="""Back up the gateway's state into one file.

The gateway may keep running. The file holds a consistent copy of the journal,
the large payloads, and the node's key: keep it as safe as the key.

For example:

  gatepost backup /backups/lab-1.tar
""",
)
_add_command(
    app,
    "restore",
    "backup:restore_gateway",
    group=_OPERATIONS_GROUP,
    help="""Restore a stopped gateway from a backup.

The gateway forgets its actions since the backup, so nothing may run twice:
waiting mail becomes dead letters, to be released with `gatepost dlq replay`;
open invites are void; peers give up messages they sent here since. An existing
journal is moved aside, not removed.

For example:

  gatepost restore /backups/lab-1.tar
  gatepost restore lab-1.tar --state-dir /srv/gatepost --yes
""",
)

_migrate = _add_family(
    "migrate",
    help="""Move from a legacy shared document to this gateway, step by step.

Every step can be interrupted and repeated.

For example:

  gatepost migrate import dump.bin --dry-run
  gatepost migrate import dump.bin
  gatepost migrate verify dump.bin
  gatepost migrate cut-over dump.bin
""",
)
_add_command(
    _migrate,
    "import",
    "migrate:import_dump",
    help="""Import every undelivered message and task of a legacy document.

Items that were imported before are skipped. After cut-over nothing is imported:
the command only reports the contents of the dump, and exits with 1 if items are
left behind.

For example:

  gatepost migrate import dump.json --dry-run
  gatepost migrate import dump.bin --map-agent "Jane's Mac=mbp-jane"
  gatepost migrate import dump.bin --only tasks --history done.jsonl
""",
)
_add_command(
    _migrate,
    "verify",
    "migrate:verify_migration",
    help="""Check that every item of a legacy document is at the gateway exactly once.

Exits with 1 if not.

For example:

  gatepost migrate verify dump.bin
""",
)
_add_command(
    _migrate,
    "dual-write",
    "migrate:dual_write_stdin",
    help="""Send messages to the gateway and write them to the legacy document too.

Reads one JSON object per line: {"from": "a", "to": "b", "payload": …},
optionally with "corrId" and "idempotencyKey". Prints a line with the event id
once both sides have the message. Messages of an interrupted run are finished
first.

For example:

  gatepost migrate dual-write --out legacy.json < messages.jsonl
""",
)
_add_command(
    _migrate,
    "cut-over",
    "migrate:cut_over_migration",
    help="""Import for the last time, verify, and end dual-write.

The cut-over is recorded only if the verification succeeds. It can be repeated
with a newer dump.

For example:

  gatepost migrate cut-over dump.bin
  gatepost migrate cut-over dump.bin --leave-rejects
""",
)
_add_command(
    _migrate,
    "status",
    "migrate:show_migration_status",
    help="""Show the phase of the migration, and whether both sides of a dual-write agree.

Exits with 1 if they do not.

For example:

  gatepost migrate status
""",
)

_archive = _add_family(
    "archive",
    help="""Show the archive of events, and verify it.

For example:

  gatepost archive status
""",
)
_add_command(
    _archive,
    "status",
    "archive:show_archive_status",
    help="""Show the archived events of each node.

For example:

  gatepost archive status
  gatepost archive status /srv/archive --json
""",
)
_add_command(
    _archive,
    "verify",
    "archive:verify_archive",
    help="""Check every signature, file and chain link.

Exits with 1 if it finds a problem.

For example:

  gatepost archive verify
  gatepost archive verify s3://bucket/archive --json
""",
)

_pipeline = _add_family(
    "pipeline",
    help="""Build tables, reports and feedback from the archive, with Spark.

Needs the extra: pip install 'gatepost[pipeline]'

For example:

  gatepost pipeline synth /tmp/archive
  gatepost pipeline run --archive /tmp/archive --tables /tmp/tables
  gatepost pipeline report --tables /tmp/tables
""",
)
_add_command(
    _pipeline,
    "run",
    "pipeline:run_pipeline",
    help="""Bring the tables up to date with events archived since the last run.

Prints the service levels of the last day.

For example:

  gatepost pipeline run
  gatepost pipeline run --archive s3://bucket/archive --master spark://host:7077
""",
)
_add_command(
    _pipeline,
    "stream",
    "pipeline:stream_archive",
    help="""Keep the tables up to date in micro-batches, until Ctrl-C.

For example:

  gatepost pipeline stream --every "30 seconds"
""",
)
_add_command(
    _pipeline,
    "audit",
    "pipeline:audit_archive",
    help="""Check every promise of the protocol against every event.

Exits with 1 if one was broken.

For example:

  gatepost pipeline audit
  gatepost pipeline audit --archive /srv/archive --json
""",
)
_add_command(
    _pipeline,
    "report",
    "pipeline:write_report",
    help="""Write the report, a self-contained HTML file.

For example:

  gatepost pipeline report
  gatepost pipeline report -o /srv/www/report.html --days 7
  gatepost pipeline report --terminal
""",
)
_add_command(
    _pipeline,
    "replay",
    "pipeline:replay_dead_letters",
    help="""Choose dead letters with SQL, and replay them at their gateway.

Replays only at the gateway of the given token; for other gateways it prints
commands to run there. Letters that were replayed before are skipped.

For example:

  gatepost pipeline replay --where "to_agent = 'bob'" --dry-run
  gatepost pipeline replay --where "reason = 'no_route'" --rate 5
""",
)
_add_command(
    _pipeline,
    "feedback",
    "pipeline:post_feedback",
    help="""Post incidents, reviews and ETA advice to a gateway.

The gateway ignores items it has already, so this can be repeated. It needs a token
file whose token has the scope ansible.admin.feedback. If the file holds an invite,
as `gatepost agent invite` prints it, the invite is replaced by its session.

For example:

  gatepost pipeline feedback
  gatepost pipeline feedback --url https://vps-jane:7433 --token-file feedback.token
""",
)
_add_command(
    _pipeline,
    "backfill",
    "pipeline:backfill_tables",
    help="""Build all tables from scratch in an empty folder.

For example:

  gatepost pipeline backfill --tables /srv/tables-2
""",
)
_add_command(
    _pipeline,
    "compact",
    "pipeline:compact_tables",
    help="""Merge small files of the tables, and delete files that are no longer needed.

For example:

  gatepost pipeline compact
  gatepost pipeline compact --keep-hours 24
""",
)
_add_command(
    _pipeline,
    "prepare",
    "pipeline:prepare_spark",
    help="""Create a JVM class cache, so that later jobs on this machine start faster.

Takes a minute and about 190 MB in ~/.cache/gatepost. Repeat it after an update of
Java or Spark.
""",
)
_add_command(
    _pipeline,
    "synth",
    "pipeline:write_synthetic_archive",
    help="""Write a synthetic archive for trials, with a file of its true figures.

For example:

  gatepost pipeline synth /tmp/archive
  gatepost pipeline synth /tmp/archive --events 1000000 --nodes 6 --all-faults
""",
)

_bench = _add_family(
    "bench",
    help="""Measure gateways and the pipeline on this machine.

For example:

  gatepost bench mailbox
  gatepost bench mailbox --messages 20000 --json
""",
)
_add_command(
    _bench,
    "mailbox",
    "bench:bench_mailbox",
    help="""Measure durable enqueue, push and ack over the WebSocket.

Starts a fresh gateway on the disk of the state directory.

For example:

  gatepost bench mailbox
  gatepost bench mailbox --messages 20000 --json
""",
)
_add_command(
    _bench,
    "pipes",
    "bench:bench_pipes",
    help="""Measure complete lifecycles between two gateways: sent, accepted, processed, closed.

Starts two fresh gateways on the disk of the state directory.

For example:

  gatepost bench pipes
  gatepost bench pipes --messages 10000 --json
""",
)
_add_command(
    _bench,
    "pipeline",
    "bench:bench_pipeline",
    help="""Measure the pipeline on synthetic archives: a full run, then one percent more.

Each run has its own Spark session. The archives are written first, which takes a while, and
removed at the end; 50 million events need about 6 GB.

For example:

  gatepost bench pipeline
  gatepost bench pipeline --events 1000000 --json
""",
)

_add_command(
    app,
    "completion",
    "completion:print_completion",
    group=_SHELL_GROUP,
    help="""Print or install a completion script.

For example:

  gatepost completion bash --install
  source <(gatepost completion bash)
""",
)
_add_command(
    app,
    "--install-completion",
    "completion:install_for_current_shell",
    group=_SHELL_GROUP,
    help="Install completion for the current shell.",
)
