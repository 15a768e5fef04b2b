"""Every command of `gatepost`: its group in the help, its name and its function.

The function's docstring is the command's whole help, and its first line the summary in the list of
commands. `gatepost --help` reads the summaries from the source: to import every command is slow.
"""

from functools import cache
from pkgutil import get_data
from typing import NamedTuple


class CommandEntry(NamedTuple):
    """`name` is one word, or a family and a word; `function` is in gatepost.cli.commands."""

    group: str
    name: str
    function: str

    @property
    def summary(self) -> str:
        module, _, name = self.function.partition(":")
        _, _, source = _read_source(module).partition(f"\ndef {name}(")
        return source.partition('"""')[2].partition("\n")[0].removesuffix('"""')


@cache
def _read_source(module: str) -> str:
    # Not a file of its own where `spark-submit` runs the package from a zip.
    content = get_data("gatepost.cli.commands", f"{module.replace('.', '/')}.py")
    assert content is not None
    return content.decode()


# The help shows groups and commands in this order.
# fmt: off
COMMANDS = (
    CommandEntry("Gateway", "up", "up:run_gateway"),
    CommandEntry("Gateway", "down", "up:stop_running_gateway"),
    CommandEntry("Gateway", "init", "init:write_settings_file"),
    CommandEntry("Gateway", "status", "status:show_status"),
    CommandEntry("Gateway", "doctor", "doctor:diagnose_gateway"),
    CommandEntry("Gateway", "dashboard", "dashboard:make_dashboard_link"),
    CommandEntry("Gateway", "top", "top:show_top"),
    CommandEntry("Gateway", "watch", "watch:watch_events"),
    CommandEntry("Gateway", "service install", "service:install_service"),
    CommandEntry("Gateway", "service uninstall", "service:uninstall_service"),
    CommandEntry("Gateway", "service status", "service:show_service"),
    CommandEntry("Gateway", "config show", "config:show_settings"),
    CommandEntry("Gateway", "config check", "config:check_settings"),
    CommandEntry("Gateway", "config reload", "config:reload_settings"),
    CommandEntry("Gateway", "config schema", "config:print_schema"),
    CommandEntry("Gateway", "context add", "contexts:add_context"),
    CommandEntry("Gateway", "context list", "contexts:list_contexts"),
    CommandEntry("Gateway", "context use", "contexts:use_context"),
    CommandEntry("Gateway", "context remove", "contexts:remove_context"),
    CommandEntry("Messages", "send", "messages.send:send_message"),
    CommandEntry("Messages", "await", "messages.await_message:await_message"),
    CommandEntry("Messages", "inbox", "messages.inbox:show_inbox"),
    CommandEntry("Messages", "ack", "messages.settle:ack_turns"),
    CommandEntry("Messages", "nack", "messages.settle:nack_turns"),
    CommandEntry("Messages", "fetch", "messages.fetch:fetch_payload"),
    CommandEntry("Messages", "trace", "messages.trace:show_trace"),
    CommandEntry("Messages", "proof", "proofs:write_proof"),
    CommandEntry("Messages", "verify", "proofs:verify_file"),
    CommandEntry("Tasks", "task create", "tasks:create_task"),
    CommandEntry("Tasks", "task list", "tasks:list_tasks"),
    CommandEntry("Tasks", "task show", "tasks:show_task"),
    CommandEntry("Tasks", "task logs", "tasks:show_log"),
    CommandEntry("Tasks", "task cancel", "tasks:cancel_task"),
    CommandEntry("Tasks", "task sessions", "tasks:list_sessions"),
    CommandEntry("Tasks", "task await", "tasks:await_task"),
    CommandEntry("Tasks", "capability publish", "capabilities:publish_capability"),
    CommandEntry("Tasks", "capability unpublish", "capabilities:unpublish_capability"),
    CommandEntry("Tasks", "capability list", "capabilities:list_capabilities"),
    CommandEntry("Tasks", "capability health", "capabilities:show_health"),
    CommandEntry("Tasks", "policy check", "policy:check_policy"),
    CommandEntry("Tasks", "policy test", "policy:test_policy"),
    CommandEntry("Tasks", "policy explain", "policy:explain_decision"),
    CommandEntry("Other gateways", "invite", "room:invite_node"),
    CommandEntry("Other gateways", "invites", "room:list_invites"),
    CommandEntry("Other gateways", "withdraw", "room:withdraw_invite"),
    CommandEntry("Other gateways", "join", "room:join_room"),
    CommandEntry("Other gateways", "nodes", "room:list_nodes"),
    CommandEntry("Other gateways", "revoke", "room:revoke_node"),
    CommandEntry("Other gateways", "room show", "room:show_room"),
    CommandEntry("Other gateways", "room watch", "room:watch_room"),
    CommandEntry("Other gateways", "room verify", "room:verify_room"),
    CommandEntry("Other gateways", "room rotate", "room:rotate_room"),
    CommandEntry("Other gateways", "mesh status", "mesh:show_mesh"),
    CommandEntry("Other gateways", "mesh watch", "mesh:watch_mesh"),
    CommandEntry("Other gateways", "mesh release", "mesh:release_lease"),
    CommandEntry("Other gateways", "mesh descriptor", "mesh:show_descriptor"),
    CommandEntry("Other gateways", "mesh secret", "mesh:show_join_secret"),
    CommandEntry("Other gateways", "route list", "routes:list_routes"),
    CommandEntry("Other gateways", "route set", "routes:set_route"),
    CommandEntry("Other gateways", "route remove", "routes:remove_route"),
    CommandEntry("Operations", "agent add", "agents:add_agents"),
    CommandEntry("Operations", "agent run", "agents:run_agent"),
    CommandEntry("Operations", "agent list", "agents:list_agents"),
    CommandEntry("Operations", "agent claim", "agents:claim_agent"),
    CommandEntry("Operations", "agent give", "agents:give_agent"),
    CommandEntry("Operations", "agent alias", "agents:alias_agent"),
    CommandEntry("Operations", "agent remove", "agents:remove_agent"),
    CommandEntry("Operations", "agent invite", "agents:invite_agent"),
    CommandEntry("Operations", "agent revoke", "agents:revoke_agent"),
    CommandEntry("Clients of MCP", "mcp install", "mcp:install_client"),
    CommandEntry("Operations", "dlq list", "dead_letters:list_dead_letters"),
    CommandEntry("Operations", "dlq show", "dead_letters:show_dead_letter"),
    CommandEntry("Operations", "dlq replay", "dead_letters:replay_dead_letters"),
    CommandEntry("Operations", "dlq discard", "dead_letters:discard_dead_letters"),
    CommandEntry("Operations", "undelivered list", "undelivered:list_undelivered"),
    CommandEntry("Operations", "undelivered show", "undelivered:show_undelivered"),
    CommandEntry("Operations", "undelivered replay", "undelivered:replay_undelivered"),
    CommandEntry("Operations", "undelivered give-up", "undelivered:give_up_messages"),
    CommandEntry("Operations", "undelivered discard", "undelivered:discard_undelivered"),
    CommandEntry("Operations", "purge", "messages.inbox:purge_mailbox"),
    CommandEntry("Operations", "audit", "status:list_audit_log"),
    CommandEntry("Operations", "incidents", "incidents:list_incidents"),
    CommandEntry("Operations", "eta", "incidents:show_eta_advice"),
    CommandEntry("Operations", "reviews list", "incidents:list_reviews"),
    CommandEntry("Operations", "reviews resolve", "incidents:resolve_review"),
    CommandEntry("Operations", "reviews dismiss", "incidents:dismiss_review"),
    CommandEntry("Operations", "backup", "backup:back_up_gateway"),
    CommandEntry("Operations", "restore", "backup:restore_gateway"),
    CommandEntry("Operations", "migrate import", "migrate:import_dump"),
    CommandEntry("Operations", "migrate follow", "migrate:follow_legacy"),
    CommandEntry("Operations", "migrate verify", "migrate:verify_migration"),
    CommandEntry("Operations", "migrate dual-write", "migrate:dual_write_stdin"),
    CommandEntry("Operations", "migrate mirror", "migrate:mirror_sends"),
    CommandEntry("Operations", "migrate cut-over", "migrate:cut_over_migration"),
    CommandEntry("Operations", "migrate status", "migrate:show_migration_status"),
    CommandEntry("Operations", "archive status", "archive:show_archive_status"),
    CommandEntry("Operations", "archive verify", "archive:verify_archive"),
    CommandEntry("Operations", "pipeline run", "pipeline:run_pipeline"),
    CommandEntry("Operations", "pipeline stream", "pipeline:stream_archive"),
    CommandEntry("Operations", "pipeline audit", "pipeline_audit:audit_archive"),
    CommandEntry("Operations", "pipeline verify", "pipeline_verify:verify_tables"),
    CommandEntry("Operations", "pipeline report", "pipeline_report:write_report"),
    CommandEntry("Operations", "pipeline replay", "pipeline_feedback:replay_dead_letters"),
    CommandEntry("Operations", "pipeline query", "pipeline_query:query_tables"),
    CommandEntry("Operations", "pipeline register", "pipeline_query:register_tables"),
    CommandEntry("Operations", "pipeline feedback", "pipeline_feedback:post_feedback"),
    CommandEntry("Operations", "pipeline backfill", "pipeline:backfill_tables"),
    CommandEntry("Operations", "pipeline compact", "pipeline:compact_tables"),
    CommandEntry("Operations", "pipeline package", "pipeline_setup:package_jobs"),
    CommandEntry("Operations", "pipeline prepare", "pipeline_setup:prepare_spark"),
    CommandEntry("Operations", "pipeline synth", "pipeline_setup:write_synthetic_archive"),
    CommandEntry("Operations", "bench mailbox", "bench:bench_mailbox"),
    CommandEntry("Operations", "bench pipes", "bench:bench_pipes"),
    CommandEntry("Operations", "bench hostile", "bench:bench_hostile"),
    CommandEntry("Operations", "bench tasks", "bench:bench_tasks"),
    CommandEntry("Operations", "bench mesh", "bench:bench_mesh"),
    CommandEntry("Operations", "bench scale", "bench:bench_scale"),
    CommandEntry("Operations", "bench doors", "bench:bench_doors"),
    CommandEntry("Operations", "bench pipeline", "bench:bench_pipeline"),
    CommandEntry("Shell", "completion", "completion:print_completion"),
    CommandEntry("Shell", "--install-completion", "completion:install_for_current_shell"),
)
# fmt: on

# Help of the commands that have subcommands.
FAMILIES = {
    "service": """Run the gateway as a service: it starts with the machine, and again if it fails.

For example:

  gatepost service install --print
  sudo gatepost service install --system
""",
    "config": """Show and check the settings, and let the running gateway read them again.

For example:

  gatepost config show
  gatepost config check && gatepost config reload
""",
    "context": """Name gateways on other machines, and talk to them by name.

For example:

  gatepost context add vps https://vps.example:7433 --token-file ~/vps.token
  gatepost send bob "hello" --context vps
""",
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
    "agent": """Add, run, list, remove and invite agents.

For example:

  gatepost agent add bob
""",
    "route": """List, set and remove routes: fallbacks for an agent whose gateway is away.

For example:

  gatepost route set bob --fallback lab-2
""",
    "mcp": """Connect Claude Code, Codex, Gemini CLI, Cursor or VS Code to a gateway.

The gateway needs the extra: pip install 'gatepost[mcp]'

Clients start two more commands, which `install` configures. With --agent NAME they act as
that agent (default: $GATEPOST_AGENT), at the gateway of --state-dir DIR:

  gatepost mcp [--operator]             serve MCP on standard input and output
  gatepost mcp hook EVENT [--client C]  tell a session about mail: start, prompt, stop, wait, end

For example:

  gatepost mcp install claude-code --wake
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
