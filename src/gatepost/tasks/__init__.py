"""Tasks and the agents that do them: registry, tokens, policy, task states, sessions."""
