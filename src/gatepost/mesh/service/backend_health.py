"""Agents that their own gateways call unhealthy: advice for routing, which ends by itself.

A gateway speaks about its own agents only, so a lie harms only the liar.
"""

MAX_REPORTS_PER_NODE = 64


class BackendHealth:
    """Reports count for `keep_ms`."""

    def __init__(self, keep_ms: int) -> None:
        self._keep_ms = keep_ms
        self._reports: dict[str, dict[str, int]] = {}

    def note_report(self, node: str, agent: str, now: int) -> bool:
        """Returns whether the agent counts as unhealthy from now on, and did not before."""
        reports = self._reports.setdefault(node, {})
        until = reports.get(agent)
        if until is None and len(reports) >= MAX_REPORTS_PER_NODE:
            return False
        reports[agent] = now + self._keep_ms
        return until is None or until <= now

    def unhealthy_agents(self, now: int) -> frozenset[tuple[str, str]]:
        """(node, agent) of all reports that are not too old."""
        for node, reports in list(self._reports.items()):
            kept = {agent: until for agent, until in reports.items() if until > now}
            if kept:
                self._reports[node] = kept
            else:
                del self._reports[node]
        return frozenset((node, agent) for node, each in self._reports.items() for agent in each)
