"""Every command of `gatepost`: its group in the help, its name, its function and its summary.

The table is all that `gatepost --help` needs, so no command's module is imported for it. A summary
is the first line of the function's docstring; the docstring holds the command's whole help.
"""

# ruff: noqa: E501 - one command per line is easier to scan than wrapped rows

from typing import NamedTuple


class CommandEntry(NamedTuple):
    """`name` is one word, or a family and a word; `function` is in gatepost.cli.commands."""

    group: str
    name: str
    function: str
    summary: str


# The help shows groups and commands in this order.
# fmt: off
COMMANDS = (
    CommandEntry("Gateway", "up", "up:run_gateway", "Run the gateway in the foreground until Ctrl-C."),
    CommandEntry("Gateway", "init", "init:write_settings_file", "Write a settings file that explains every setting."),
    CommandEntry("Gateway", "status", "status:show_status", "Show the state of the gateway and of its mailboxes, or of one message."),
    CommandEntry("Messages", "send", "messages.send:send_message", "Send a message to an agent."),
    CommandEntry("Messages", "await", "messages.await_message:await_message", "Wait for the outcome of a message, and print its reply."),
    CommandEntry("Messages", "inbox", "messages.inbox:show_inbox", "List an agent's waiting mail, or take it."),
    CommandEntry("Messages", "ack", "messages.settle:ack_turns", "Ack leased messages: their turns ended well."),
    CommandEntry("Messages", "nack", "messages.settle:nack_turns", "Nack leased messages: their turns failed."),
    CommandEntry("Messages", "fetch", "messages.fetch:fetch_payload", "Download a payload that was too large to travel inside its message."),
    CommandEntry("Messages", "trace", "messages.trace:show_trace", "Show every step of a message, from send to the end of its turn, at every gateway."),
    CommandEntry("Tasks", "task create", "tasks:create_task", "Create a task for an agent, or for one that has a capability."),
    CommandEntry("Tasks", "task list", "tasks:list_tasks", "List tasks that were requested or are executed here, newest first."),
    CommandEntry("Tasks", "task show", "tasks:show_task", "Show one task with its input and result."),
    CommandEntry("Tasks", "task logs", "tasks:show_log", "Print the output of a task's session."),
    CommandEntry("Tasks", "task cancel", "tasks:cancel_task", "Cancel a task; its session is ended."),
    CommandEntry("Tasks", "task await", "tasks:await_task", "Wait for the end of a task, and print its result."),
    CommandEntry("Tasks", "capability publish", "capabilities:publish_capability", "Publish a capability of an agent of this gateway."),
    CommandEntry("Tasks", "capability unpublish", "capabilities:unpublish_capability", "Withdraw a capability: no task is routed by it from now on."),
    CommandEntry("Tasks", "capability list", "capabilities:list_capabilities", "List every capability of the room."),
    CommandEntry("Tasks", "capability health", "capabilities:show_health", "Show how a capability fares: its tasks, its skill at each agent, its reviews."),
    CommandEntry("Tasks", "capability reviews", "capabilities:list_capability_reviews", "List reviews of capabilities that misfired, newest first."),
    CommandEntry("Tasks", "policy check", "policy:check_policy", "Check the rules of a policy: their syntax, and every name in them."),
    CommandEntry("Tasks", "policy test", "policy:test_policy", "Ask a policy the questions of a file, and compare its answers with the expected ones."),
    CommandEntry("Tasks", "policy explain", "policy:explain_decision", "Say what the policy decides, and which rule decides it."),
    CommandEntry("Other gateways", "invite", "room:invite_node", "Invite another gateway into this one's room."),
    CommandEntry("Other gateways", "invites", "room:list_invites", "List the invites this gateway issued."),
    CommandEntry("Other gateways", "withdraw", "room:withdraw_invite", "Withdraw an invite that was not used yet."),
    CommandEntry("Other gateways", "join", "room:join_room", "Join the room of the gateway that issued an invite, or a mesh by its join secret."),
    CommandEntry("Other gateways", "nodes", "room:list_nodes", "List the nodes of the room."),
    CommandEntry("Other gateways", "revoke", "room:revoke_node", "Revoke a node: it is disconnected now and can never join again."),
    CommandEntry("Other gateways", "room show", "room:show_room", "Show every record of the room."),
    CommandEntry("Other gateways", "room watch", "room:watch_room", "Print every record as it changes, until Ctrl-C."),
    CommandEntry("Other gateways", "room verify", "room:verify_room", "Check the signature of every record this gateway keeps."),
    CommandEntry("Other gateways", "room rotate", "room:rotate_room", "Move the room to a new document without records that are no longer needed."),
    CommandEntry("Other gateways", "mesh status", "mesh:show_mesh", "Show which gateways of the mesh are alive, and which one leads."),
    CommandEntry("Other gateways", "mesh watch", "mesh:watch_mesh", "Print the mesh whenever a gateway falls silent, returns or leads, until Ctrl-C."),
    CommandEntry("Other gateways", "mesh descriptor", "mesh:show_descriptor", "Show where the mesh can be reached, or write it to a file."),
    CommandEntry("Other gateways", "mesh secret", "mesh:show_join_secret", "Write the secret by which machines join without an invite, or replace it."),
    CommandEntry("Other gateways", "route list", "routes:list_routes", "List the routes of the room."),
    CommandEntry("Other gateways", "route set", "routes:set_route", "Set the route to an agent, or to every agent of a node."),
    CommandEntry("Other gateways", "route remove", "routes:remove_route", "Remove a route that this gateway set."),
    CommandEntry("Operations", "agent add", "agents:add_agents", "Register agents, so that mail can be sent to them."),
    CommandEntry("Operations", "agent list", "agents:list_agents", "List the gateway's agents."),
    CommandEntry("Operations", "agent claim", "agents:claim_agent", "Move an agent of the room to this gateway."),
    CommandEntry("Operations", "agent give", "agents:give_agent", "Give an agent of this gateway to another gateway."),
    CommandEntry("Operations", "agent remove", "agents:remove_agent", "Remove an agent; its waiting mail becomes dead letters."),
    CommandEntry("Operations", "agent invite", "agents:invite_agent", "Invite an external agent, one that reaches this gateway over the network."),
    CommandEntry("Operations", "agent revoke", "agents:revoke_agent", "End the sessions and open invites of an external agent."),
    CommandEntry("Operations", "dlq list", "dead_letters:list_dead_letters", "List dead letters, oldest first: those of an agent, or of all agents."),
    CommandEntry("Operations", "dlq show", "dead_letters:show_dead_letter", "Show one dead letter with its payload."),
    CommandEntry("Operations", "dlq replay", "dead_letters:replay_dead_letters", "Send dead letters again as new messages."),
    CommandEntry("Operations", "dlq discard", "dead_letters:discard_dead_letters", "Discard dead letters and their payloads."),
    CommandEntry("Operations", "undelivered list", "undelivered:list_undelivered", "List messages this gateway gave up, oldest first."),
    CommandEntry("Operations", "undelivered show", "undelivered:show_undelivered", "Show one undelivered message with its payload."),
    CommandEntry("Operations", "undelivered replay", "undelivered:replay_undelivered", "Send undelivered messages again as new events."),
    CommandEntry("Operations", "undelivered give-up", "undelivered:give_up_messages", "Give up open messages whose gateway never comes back."),
    CommandEntry("Operations", "undelivered discard", "undelivered:discard_undelivered", "Discard undelivered messages and their payloads."),
    CommandEntry("Operations", "purge", "messages.inbox:purge_mailbox", "Turn an agent's waiting mail into dead letters."),
    CommandEntry("Operations", "audit", "status:list_audit_log", "List manual actions (purge, replay, removal), newest first."),
    CommandEntry("Operations", "incidents", "incidents:list_incidents", "List incidents, newest first, or resolve one."),
    CommandEntry("Operations", "eta", "incidents:show_eta_advice", "Show how long the tasks of each capability take, and the ETA it should promise."),
    CommandEntry("Operations", "reviews list", "incidents:list_reviews", "List reviews of misfires, newest first."),
    CommandEntry("Operations", "reviews resolve", "incidents:resolve_review", "Mark a review as resolved."),
    CommandEntry("Operations", "reviews dismiss", "incidents:dismiss_review", "Mark a review as needing no action."),
    CommandEntry("Operations", "backup", "backup:back_up_gateway", "Back up the gateway's state into one file."),
    CommandEntry("Operations", "restore", "backup:restore_gateway", "Restore a stopped gateway from a backup."),
    CommandEntry("Operations", "migrate import", "migrate:import_dump", "Import every undelivered message and task of a legacy document."),
    CommandEntry("Operations", "migrate follow", "migrate:follow_legacy", "Import new items of the legacy document as they appear, until Ctrl-C."),
    CommandEntry("Operations", "migrate verify", "migrate:verify_migration", "Check that every item of a legacy document is at the gateway exactly once."),
    CommandEntry("Operations", "migrate dual-write", "migrate:dual_write_stdin", "Send messages to the gateway and write them to the legacy document too."),
    CommandEntry("Operations", "migrate mirror", "migrate:mirror_sends", "Write every message sent through the gateway to the legacy document too, until Ctrl-C."),
    CommandEntry("Operations", "migrate cut-over", "migrate:cut_over_migration", "Import for the last time, verify, and end dual-write."),
    CommandEntry("Operations", "migrate status", "migrate:show_migration_status", "Show the phase of the migration, and whether both sides of a dual-write agree."),
    CommandEntry("Operations", "archive status", "archive:show_archive_status", "Show the archived events of each node."),
    CommandEntry("Operations", "archive verify", "archive:verify_archive", "Check every signature, file and chain link."),
    CommandEntry("Operations", "pipeline run", "pipeline:run_pipeline", "Bring the tables up to date with events archived since the last run."),
    CommandEntry("Operations", "pipeline stream", "pipeline:stream_archive", "Run again and again, in one session, until Ctrl-C."),
    CommandEntry("Operations", "pipeline audit", "pipeline_audit:audit_archive", "Check every promise of the protocol against every event."),
    CommandEntry("Operations", "pipeline report", "pipeline_report:write_report", "Write the report, a self-contained HTML file."),
    CommandEntry("Operations", "pipeline replay", "pipeline_feedback:replay_dead_letters", "Choose dead letters with SQL, and replay them at their gateway."),
    CommandEntry("Operations", "pipeline query", "pipeline_query:query_tables", "Ask the tables a question in SQL. All of them are as one batch left them."),
    CommandEntry("Operations", "pipeline register", "pipeline_query:register_tables", "Register the tables in the catalog of a Spark that knows Delta."),
    CommandEntry("Operations", "pipeline feedback", "pipeline_feedback:post_feedback", "Post incidents, reviews and ETA advice to a gateway."),
    CommandEntry("Operations", "pipeline backfill", "pipeline:backfill_tables", "Build all tables from scratch in an empty folder."),
    CommandEntry("Operations", "pipeline compact", "pipeline:compact_tables", "Merge small files of the tables, and delete files that are no longer needed."),
    CommandEntry("Operations", "pipeline package", "pipeline_setup:package_jobs", "Write the files that spark-submit needs to run the jobs."),
    CommandEntry("Operations", "pipeline prepare", "pipeline_setup:prepare_spark", "Create a JVM class cache, so that later jobs on this machine start faster."),
    CommandEntry("Operations", "pipeline synth", "pipeline_setup:write_synthetic_archive", "Write a synthetic archive for trials, with a file of its true figures."),
    CommandEntry("Operations", "bench mailbox", "bench:bench_mailbox", "Measure durable enqueue, push and ack over the WebSocket, in order and as a work queue."),
    CommandEntry("Operations", "bench pipes", "bench:bench_pipes", "Measure complete lifecycles between two gateways: sent, accepted, processed, closed."),
    CommandEntry("Operations", "bench hostile", "bench:bench_hostile", "Measure how long agents wait while strangers crowd their gateway."),
    CommandEntry("Operations", "bench tasks", "bench:bench_tasks", "Measure tasks: in sessions, by a running agent, and between two gateways."),
    CommandEntry("Operations", "bench mesh", "bench:bench_mesh", "Measure the mesh: datagrams judged, the cost of idle nodes, gossip, and takeovers."),
    CommandEntry("Operations", "bench pipeline", "bench:bench_pipeline", "Measure the pipeline on synthetic archives: a full run, then one percent more."),
    CommandEntry("Shell", "completion", "completion:print_completion", "Print or install a completion script."),
    CommandEntry("Shell", "--install-completion", "completion:install_for_current_shell", "Install completion for the current shell."),
)
# fmt: on

# Help of the commands that have subcommands.
FAMILIES = {
    "task": """Create, follow, await and cancel tasks.

For example:

  gatepost task create code-reviewer "review this change" --wait
""",
    "capability": """Publish what agents can do for others, and see how that fares.

For example:

  gatepost capability publish review.json
  gatepost capability health review
""",
    "policy": """Check, test and explain the hub's policy: rules in Cedar.

For example:

  gatepost policy explain operator assignTask code-reviewer
""",
    "room": """Show, watch, verify and rotate the room that all gateways share.

For example:

  gatepost room show
""",
    "mesh": """See the mesh of gateways, and let new machines find it.

For example:

  gatepost mesh status
  gatepost mesh descriptor
""",
    "agent": """Add, list, remove and invite agents.

For example:

  gatepost agent add bob
""",
    "route": """List, set and remove routes: fallbacks for an agent whose gateway is away.

For example:

  gatepost route set bob --fallback lab-2
""",
    "dlq": """List, show, replay and discard dead letters.

For example:

  gatepost dlq list
""",
    "undelivered": """List, show, replay and discard messages this gateway gave up, or give some up.

These messages were sent from here, and no gateway is known to have processed
them. Messages whose turns failed are dead letters at the receiving gateway: see
dlq.

For example:

  gatepost undelivered list
""",
    "reviews": """List and close reviews of capabilities that misfired.

For example:

  gatepost reviews list
""",
    "migrate": """Move from a legacy shared document to this gateway, step by step.

Every step can be interrupted and repeated.

For example:

  gatepost migrate import dump.bin --dry-run
  gatepost migrate import dump.bin
  gatepost migrate verify dump.bin
  gatepost migrate cut-over dump.bin
""",
    "archive": """Show the archive of events, and verify it.

For example:

  gatepost archive status
""",
    "pipeline": """Build tables, reports and feedback from the archive, with Spark.

Needs the extra: pip install 'gatepost[pipeline]'

For example:

  gatepost pipeline synth /tmp/archive
  gatepost pipeline run --archive /tmp/archive --tables /tmp/tables
  gatepost pipeline report --tables /tmp/tables
""",
    "bench": """Measure gateways and the pipeline on this machine.

For example:

  gatepost bench mailbox
  gatepost bench mailbox --messages 20000 --json
""",
}
