"""Every command, where it is implemented, and its help. Modules are loaded when they are used."""

from itertools import count

from cyclopts import App, Group

from gatepost import __version__

_RUN = Group("Gateway", sort_key=1)
_MAIL = Group("Messages", sort_key=2)
_MESH = Group("Other gateways", sort_key=3)
_CARE = Group("Operations", sort_key=4)
_SHELL = Group("Shell", sort_key=5)

app = App(
    name="gatepost",
    help="""Hand messages to agents without losing one.

Begin here:

  gatepost up                           run a gateway (leave it running)
  gatepost agent add bob                let bob receive mail
  gatepost send bob "hello"             send bob a message
  gatepost inbox bob --take             take it, and get its receipt
  gatepost ack bob RECEIPT --reply hi   end the turn

Exit codes: 0 done, 1 failed or not reached, 2 wrong usage, 3 no gateway.
""",
    version=__version__,
    help_format="plaintext",
)
app["--help"].group = _SHELL
app["--version"].group = _SHELL

_places = count()


def _add(to: App, name: str, where: str, *, help: str, group: Group | None = None) -> None:
    """Commands are listed in the order in which they are added."""
    path = f"gatepost.cli.{where}"
    to.command(path, name=name, help=help, group=group, sort_key=next(_places))


def _add_family(name: str, *, help: str, group: Group = _CARE) -> App:
    family = App(name=name, help=help, group=group, sort_key=next(_places))
    app.command(family)
    return family


_add(
    app,
    "up",
    "up:up",
    group=_RUN,
    help="""Run the gateway in the foreground until Ctrl-C.

Settings come from gatepost.toml in the state directory. GATEPOST_* variables
win over it, and the options below win over both.

For example:

  gatepost up
  gatepost up --port 0 --state-dir /tmp/try
  GATEPOST_MAILBOX__MAX_RETRIES=5 gatepost up
""",
)
_add(
    app,
    "init",
    "init:init",
    group=_RUN,
    help="""Write a settings file that explains every setting.

For example:

  gatepost init
  gatepost init --state-dir /srv/gatepost --node-id lab-1
""",
)
_add(
    app,
    "status",
    "status:status",
    group=_RUN,
    help="""Show the gateway and its mailboxes at a glance.

Exits with 1 if the gateway runs but does not accept messages.

For example:

  gatepost status
  gatepost status --json | jq .gateway.waiting
""",
)
_add(
    app,
    "send",
    "send:send",
    group=_MAIL,
    help="""Send a message to an agent.

Prints the message's id and state, and the reply if there is one. Exits with 0
only if the message reached what was waited for.

For example:

  gatepost send bob "hello"
  gatepost send bob '{"n": 1}' --json-payload --wait processed --timeout 60
  git diff | gatepost send reviewer -
  gatepost send bob --file photo.jpg
  gatepost send --to bob --to carol "both of you"
  gatepost send --broadcast "all of you" --wait accepted
""",
)
_add(
    app,
    "inbox",
    "inbox:inbox",
    group=_MAIL,
    help="""Look at an agent's waiting mail, or take it.

Looking changes nothing. Taking leases the messages: end each turn with
`gatepost ack` or `gatepost nack` before the lease runs out, or the message is
delivered again.

For example:

  gatepost inbox bob
  gatepost inbox bob --take --limit 5 --wait 30
""",
)
_add(
    app,
    "ack",
    "settle:ack",
    group=_MAIL,
    help="""End turns well.

The sender learns that its message was processed.

For example:

  gatepost ack bob RECEIPT
  gatepost ack bob RECEIPT --reply "done"
  gatepost ack bob --msg-id ID
""",
)
_add(
    app,
    "nack",
    "settle:nack",
    group=_MAIL,
    help="""End turns badly.

Each message is retried after a while, or becomes a dead letter.

For example:

  gatepost nack bob RECEIPT --reason "cannot reach the database"
""",
)
_add(
    app,
    "fetch",
    "fetch:fetch",
    group=_MAIL,
    help="""Fetch a payload that was too large to travel inside its message.

For example:

  gatepost fetch sha256:DIGEST --output photo.jpg
""",
)
_add(
    app,
    "trace",
    "trace:trace",
    group=_MAIL,
    help="""Show a journey, from being sent to the end of the turn, as every gateway saw it.

A message is named by its id, a conversation by its correlation id. Gateways
that cannot be asked are named.

For example:

  gatepost trace ID
  gatepost trace order-4711 --conversation
""",
)

_add(
    app,
    "invite",
    "room:invite",
    group=_MESH,
    help="""Invite another gateway into this one's room.

Prints the invite, which is a secret and good once, and how to use it. On a
terminal it is also drawn as a QR code. The first invite founds the room.

For example:

  gatepost invite --tier edge --node mbp-jane
  gatepost invite --node mbp-jane > invite.txt
""",
)
_add(
    app,
    "invites",
    "room:invites",
    group=_MESH,
    help="""List the invites this gateway issued.

For example:

  gatepost invites
""",
)
_add(
    app,
    "withdraw",
    "room:withdraw",
    group=_MESH,
    help="""Take back an invite that was not used yet.

For example:

  gatepost withdraw 3618f0c1d4f9b164
""",
)
_add(
    app,
    "join",
    "room:join",
    group=_MESH,
    help="""Join the room of the gateway that issued an invite.

The invite is read from a file or from standard input, never from the command
line, where other users of the machine could see it.

For example:

  gatepost join https://vps-jane:7433 --token -
  gatepost join https://vps-jane:7433 --token-file invite.txt
""",
)
_add(
    app,
    "nodes",
    "room:nodes",
    group=_MESH,
    help="""List the nodes of the room.

For example:

  gatepost nodes
""",
)
_add(
    app,
    "revoke",
    "room:revoke",
    group=_MESH,
    help="""Shut a node out of the room, for ever and at once.

For example:

  gatepost revoke mbp-jane --reason "laptop lost"
""",
)

_room = _add_family(
    "room",
    help="""Look at the room all gateways share.

For example:

  gatepost room show
""",
    group=_MESH,
)
_add(
    _room,
    "show",
    "room:show",
    help="""Show every record of the room.

For example:

  gatepost room show
  gatepost room show --json | jq .records
""",
)
_add(
    _room,
    "watch",
    "room:watch",
    help="""Print every record as it changes, until Ctrl-C.

For example:

  gatepost room watch
  gatepost room watch --json
""",
)
_add(
    _room,
    "verify",
    "room:verify",
    help="""Check the signature of every record this gateway keeps.

Exits with 1 if one is wrong.

For example:

  gatepost room verify
""",
)

_add(
    _room,
    "rotate",
    "room:rotate",
    help="""Move the room to a fresh document, in which what is over is forgotten.

All gateways follow; one that is away follows when it is back.

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
_add(
    _agent,
    "add",
    "agents:add",
    help="""Register agents, so that mail can be sent to them.

A client registers its agent by itself when it connects; this is for agents
that have none.

For example:

  gatepost agent add bob alice
  gatepost agent add bob --standby
""",
)
_add(
    _agent,
    "list",
    "agents:list_",
    help="""List the gateway's agents.

For example:

  gatepost agent list
  gatepost agent list --room
  gatepost agent list --external
""",
)
_add(
    _agent,
    "claim",
    "agents:claim",
    help="""Let an agent of the room live behind this gateway.

The gateway it lives behind is asked to let it go, though it may be served
there; its waiting mail follows. If that gateway is gone for good, a backbone
node overrides it.

For example:

  gatepost agent claim bob
  gatepost agent claim bob --override
  gatepost agent claim bob --override --node lab-1
""",
)
_add(
    _agent,
    "remove",
    "agents:remove",
    help="""Remove an agent; its waiting mail becomes dead letters.

For example:

  gatepost agent remove bob
""",
)

_add(
    _agent,
    "invite",
    "agents:invite",
    help="""Invite an external agent, one that reaches this gateway over the network.

Prints the invite, which is a secret and good once. Without --scope it may send
messages, take its own, and see the gateway's status.

For example:

  gatepost agent invite ci-bot
  gatepost agent invite ci-bot --scope ansible.message.send --ttl 600
""",
)
_add(
    _agent,
    "revoke",
    "agents:revoke",
    help="""End an external agent's sessions, and its open invites.

For example:

  gatepost agent revoke ci-bot
""",
)

_route = _add_family(
    "route",
    group=_MESH,
    help="""List, set and remove routes: who takes an agent's mail while its gateway is away.

For example:

  gatepost route set bob --fallback lab-2
""",
)
_add(
    _route,
    "list",
    "routes:list_",
    help="""List the routes of the room.

For example:

  gatepost route list
""",
)
_add(
    _route,
    "set",
    "routes:set_",
    help="""Set how an agent, or any agent of a node, is reached.

A fallback takes mail while the owner is away, if it hosts the agent as a
standby and has the capabilities asked for. A route for an agent comes before
one for the node it lives behind.

For example:

  gatepost route set bob --fallback lab-2 --fallback lab-3
  gatepost route set lab-1 --fallback lab-2 --requires gpu
  gatepost route set bob --priority 30
""",
)
_add(
    _route,
    "remove",
    "routes:remove",
    help="""Take back a route that was set here.

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
_add(
    _dlq,
    "list",
    "dlq:list_",
    help="""List an agent's dead letters, oldest first.

For example:

  gatepost dlq list bob
  gatepost dlq list bob --reason-contains database
""",
)
_add(
    _dlq,
    "show",
    "dlq:show",
    help="""Show one dead letter with its payload.

For example:

  gatepost dlq show bob ID
""",
)
_add(
    _dlq,
    "replay",
    "dlq:replay",
    help="""Send dead letters again, as new messages.

A dead letter that was replayed stays, remembers as what, and is not replayed
again.

For example:

  gatepost dlq replay bob ID
  gatepost dlq replay bob --sender alice --limit 10
  gatepost dlq replay bob --all --rate 5
""",
)
_add(
    _dlq,
    "discard",
    "dlq:discard",
    help="""Give up dead letters for good; their payloads are dropped.

For example:

  gatepost dlq discard bob ID
  gatepost dlq discard bob --all --yes
""",
)

_undelivered = _add_family(
    "undelivered",
    help="""List, show, replay and discard messages this gateway gave up.

They were sent from here, and nobody is known to have taken them. Those somebody
took and could not deal with are dead letters, at that gateway: see dlq.

For example:

  gatepost undelivered list
""",
)
_add(
    _undelivered,
    "list",
    "undelivered:list_",
    help="""List messages this gateway gave up, oldest first.

For example:

  gatepost undelivered list
  gatepost undelivered list --agent bob --reason expired --older-than 3600
""",
)
_add(
    _undelivered,
    "show",
    "undelivered:show",
    help="""Show one of them with its payload.

For example:

  gatepost undelivered show ID
""",
)
_add(
    _undelivered,
    "replay",
    "undelivered:replay",
    help="""Send messages again that were given up, as new events.

Whoever was asked last may have taken the turn all the same. Unless it said that
it did not, or was never asked, that takes --force.

For example:

  gatepost undelivered replay ID
  gatepost undelivered replay --agent bob --rate 5
  gatepost undelivered replay ID --force
""",
)
_add(
    _undelivered,
    "discard",
    "undelivered:discard",
    help="""Give messages up for good; their payloads are dropped.

For example:

  gatepost undelivered discard ID
  gatepost undelivered discard --all --yes
""",
)

_add(
    app,
    "purge",
    "inbox:purge",
    group=_CARE,
    help="""Turn an agent's waiting mail into dead letters.

What is in flight is left alone.

For example:

  gatepost purge bob
""",
)
_add(
    app,
    "audit",
    "status:audit",
    group=_CARE,
    help="""List what was done by hand (purge, replay, removal), newest first.

For example:

  gatepost audit --limit 50
""",
)

_add(
    app,
    "incidents",
    "incidents:incidents",
    group=_CARE,
    help="""List what went wrong and somebody should know of, newest first.

For example:

  gatepost incidents
  gatepost incidents --since 3600 --class dead_letter
""",
)
_add(
    app,
    "eta",
    "incidents:eta",
    group=_CARE,
    help="""Show how long capabilities take, and what they should promise.

For example:

  gatepost eta
""",
)

_reviews = _add_family(
    "reviews",
    help="""List misfires of capabilities, and settle them.

For example:

  gatepost reviews list
""",
)
_add(
    _reviews,
    "list",
    "incidents:reviews",
    help="""List misfires that somebody has to look at, newest first.

For example:

  gatepost reviews list
  gatepost reviews list --status all
""",
)
_add(
    _reviews,
    "resolve",
    "incidents:resolve",
    help="""Say that a review was dealt with.

For example:

  gatepost reviews resolve ID --note "promises 90 s now"
""",
)
_add(
    _reviews,
    "dismiss",
    "incidents:dismiss",
    help="""Say that a review needs nothing.

For example:

  gatepost reviews dismiss ID --note "a planned outage"
""",
)

_add(
    app,
    "backup",
    "backup:backup",
    group=_CARE,
    help="""Copy everything the gateway must not forget into one file.

The gateway may run meanwhile. The file has the journal as it is at one moment,
the large payloads, and the node's key: keep it as safe as the key.

For example:

  gatepost backup /backups/lab-1.tar
""",
)
_add(
    app,
    "restore",
    "backup:restore",
    group=_CARE,
    help="""Put a stopped gateway back to what it was when a backup was made.

What it did since is forgotten, so nothing is done twice: mail that waited
becomes dead letters, to be released with `gatepost dlq replay`; open invites
are void; others give up what they sent here meanwhile. A journal that is there
is moved aside, not removed.

For example:

  gatepost restore /backups/lab-1.tar
  gatepost restore lab-1.tar --state-dir /srv/gatepost --yes
""",
)

_migrate = _add_family(
    "migrate",
    help="""Move from a legacy shared document to this gateway, step by step.

Every step may be interrupted and repeated.

For example:

  gatepost migrate import dump.bin --dry-run
  gatepost migrate import dump.bin
  gatepost migrate verify dump.bin
  gatepost migrate cut-over dump.bin
""",
)
_add(
    _migrate,
    "import",
    "migrate:import_",
    help="""Hand every undelivered message and task of a legacy document to the gateway.

What was imported before is not imported again. After cut-over nothing is sent:
the command only says what is in the dump, and exits with 1 if something is
left behind.

For example:

  gatepost migrate import dump.json --dry-run
  gatepost migrate import dump.bin --map-agent "Jane's Mac=mbp-jane"
  gatepost migrate import dump.bin --only tasks --history done.jsonl
""",
)
_add(
    _migrate,
    "verify",
    "migrate:verify",
    help="""Hold a legacy document against the gateway: is everything there, and once?

Exits with 1 if not.

For example:

  gatepost migrate verify dump.bin
""",
)
_add(
    _migrate,
    "dual-write",
    "migrate:dual_write",
    help="""Send messages to the gateway and write them to the legacy document too.

Reads a JSON object a line: {"from": "a", "to": "b", "payload": …}, optionally
with "corrId" and "idempotencyKey". Prints a line with its event id for each,
once both sides have it. What an interrupted run left is finished first.

For example:

  gatepost migrate dual-write --out legacy.json < messages.jsonl
""",
)
_add(
    _migrate,
    "cut-over",
    "migrate:cut_over",
    help="""Import for the last time, verify, and end dual-write.

Nothing is marked unless all of it adds up. It may be repeated with a newer
dump.

For example:

  gatepost migrate cut-over dump.bin
  gatepost migrate cut-over dump.bin --leave-rejects
""",
)
_add(
    _migrate,
    "status",
    "migrate:status",
    help="""Show how far the migration is, and whether both sides of a dual-write agree.

Exits with 1 if they do not.

For example:

  gatepost migrate status
""",
)

_archive = _add_family(
    "archive",
    help="""Look at the archive of sealed events, and verify it.

For example:

  gatepost archive status
""",
)
_add(
    _archive,
    "status",
    "archive:status",
    help="""Show what each node has sealed.

For example:

  gatepost archive status
  gatepost archive status /srv/archive --json
""",
)
_add(
    _archive,
    "verify",
    "archive:verify",
    help="""Check every signature, every file and every link of the chain.

Exits with 1 if something is wrong.

For example:

  gatepost archive verify
  gatepost archive verify s3://bucket/archive --json
""",
)

_pipeline = _add_family(
    "pipeline",
    help="""Turn the archive into tables, and tables into answers, with Spark.

Needs the extra: pip install 'gatepost[pipeline]'

For example:

  gatepost pipeline synth /tmp/archive
  gatepost pipeline run --archive /tmp/archive --tables /tmp/tables
  gatepost pipeline report --tables /tmp/tables
""",
)
_add(
    _pipeline,
    "run",
    "pipeline:run",
    help="""Bring the tables up to date with what was sealed since the last run.

Prints the service levels of the last day.

For example:

  gatepost pipeline run
  gatepost pipeline run --archive s3://bucket/archive --master spark://host:7077
""",
)
_add(
    _pipeline,
    "stream",
    "pipeline:stream",
    help="""Keep the tables up to date in micro-batches, until Ctrl-C.

For example:

  gatepost pipeline stream --every "30 seconds"
""",
)
_add(
    _pipeline,
    "audit",
    "pipeline:audit",
    help="""Check every promise of the protocol against every event.

Exits with 1 if one was broken.

For example:

  gatepost pipeline audit
  gatepost pipeline audit --archive /srv/archive --json
""",
)
_add(
    _pipeline,
    "report",
    "pipeline:report",
    help="""Write the report: one HTML file that needs nothing else.

For example:

  gatepost pipeline report
  gatepost pipeline report -o /srv/www/report.html --days 7
  gatepost pipeline report --terminal
""",
)
_add(
    _pipeline,
    "replay",
    "pipeline:replay",
    help="""Choose dead letters with SQL, and have their gateways send them again.

Asked is only the gateway whose token we have; for all others there are commands
to run there. What was replayed before is not replayed again.

For example:

  gatepost pipeline replay --where "to_agent = 'bob'" --dry-run
  gatepost pipeline replay --where "reason = 'no_route'" --rate 5
""",
)
_add(
    _pipeline,
    "feedback",
    "pipeline:feedback",
    help="""Post incidents, reviews and ETA advice to a gateway.

What it knows already it ignores, so this may be repeated. A token with the scope
ansible.admin.feedback is enough; it is read from a file. If that holds an invite, as
`gatepost agent invite` prints it, it holds the session from then on.

For example:

  gatepost pipeline feedback
  gatepost pipeline feedback --url https://vps-jane:7433 --token-file feedback.token
""",
)
_add(
    _pipeline,
    "backfill",
    "pipeline:backfill",
    help="""Make all tables from nothing, in an empty folder.

For example:

  gatepost pipeline backfill --tables /srv/tables-2
""",
)
_add(
    _pipeline,
    "compact",
    "pipeline:compact",
    help="""Merge small files of the tables, and delete those nobody needs any more.

For example:

  gatepost pipeline compact
  gatepost pipeline compact --keep-hours 24
""",
)
_add(
    _pipeline,
    "prepare",
    "pipeline:prepare",
    help="""Let later jobs on this machine start sooner.

Takes a minute, and leaves about 190 MB in ~/.cache/gatepost. Do it again after an update of Java or
of Spark.
""",
)
_add(
    _pipeline,
    "synth",
    "pipeline:synth",
    help="""Write a synthetic archive, and the truth about it, to try things on.

For example:

  gatepost pipeline synth /tmp/archive
  gatepost pipeline synth /tmp/archive --events 1000000 --nodes 6 --all-faults
""",
)

_bench = _add_family(
    "bench",
    help="""Measure this machine's gateway.

For example:

  gatepost bench mailbox
  gatepost bench mailbox --messages 20000 --json
""",
)
_add(
    _bench,
    "mailbox",
    "bench:mailbox",
    help="""Measure durable enqueue, push and ack through the WebSocket surface.

The gateway that is measured is a fresh one, on the disk of the state directory.

For example:

  gatepost bench mailbox
  gatepost bench mailbox --messages 20000 --json
""",
)
_add(
    _bench,
    "pipes",
    "bench:pipes",
    help="""Measure whole lifecycles between two gateways: sent, accepted, processed, closed.

The gateways that are measured are fresh ones, on the disk of the state directory.

For example:

  gatepost bench pipes
  gatepost bench pipes --messages 10000 --json
""",
)
_add(
    _bench,
    "pipeline",
    "bench:pipeline",
    help="""Measure the pipeline on synthetic archives: a full run, then one percent more.

Each run has a Spark session of its own. The archives are written first, which takes a while, and
removed at the end; 50 million events need about 6 GB.

For example:

  gatepost bench pipeline
  gatepost bench pipeline --events 1000000 --json
""",
)

_add(
    app,
    "completion",
    "completion:completion",
    group=_SHELL,
    help="""Print a shell's completion script, or install it.

For example:

  gatepost completion bash --install
  source <(gatepost completion bash)
""",
)
_add(
    app,
    "--install-completion",
    "completion:install_completion",
    group=_SHELL,
    help="Install completion for the shell this is run from.",
)
