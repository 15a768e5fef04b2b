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
    help="""Show a message's journey, from being sent to the end of its turn.

For example:

  gatepost trace ID
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
""",
)
_add(
    _agent,
    "list",
    "agents:list_",
    help="""List the gateway's agents.

For example:

  gatepost agent list
  gatepost agent list --external
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
