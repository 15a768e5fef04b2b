"""The Cedar schema of the hub's policy, and the policy that applies without a policy file.

Cedar denies requests that no rule permits, and a `forbid` rule wins over every `permit` rule.
"""

SCHEMA = """
// The operator of this gateway: whoever holds its local token.
entity Operator;
// An agent. `gateway` is empty for an agent of this gateway. `registered`: the agents folder or the
// room knows it. `capabilities` and `hardened` are those of its definition in the agents folder.
entity Agent {
    gateway: String,
    registered: Bool,
    hardened: Bool,
    capabilities: Set<String>,
};
entity Capability;
entity Hub;

action "assignTask" appliesTo {
    principal: [Agent, Operator],
    resource: [Agent],
    context: { described: Bool, taskType: String },
};
action "sendMessage" appliesTo {
    principal: [Agent, Operator],
    resource: [Agent, Hub],
    context: { type: String },
};
action "useCapability" appliesTo {
    principal: [Agent, Operator],
    resource: [Capability],
    context: { granted: Bool },
};
"""

DEFAULT_POLICY = """\
// Anybody may give a described task to an agent that is known.
@id("described-tasks")
permit (principal, action == Action::"assignTask", resource)
when { resource.registered && context.described };

// A message needs a type. It goes to an agent that is known, or to the hub.
@id("typed-messages-to-agents")
permit (principal, action == Action::"sendMessage", resource is Agent)
when { resource.registered && context.type != "" };

@id("typed-messages-to-the-hub")
permit (principal, action == Action::"sendMessage", resource is Hub)
when { context.type != "" };

// An agent may use the capabilities of its definition, and the operator any.
@id("granted-capabilities")
permit (principal, action == Action::"useCapability", resource)
when { context.granted };

@id("operator-capabilities")
permit (principal is Operator, action == Action::"useCapability", resource);
"""
