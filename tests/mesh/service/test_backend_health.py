from gatepost.mesh.service.backend_health import MAX_REPORTS_PER_NODE, BackendHealth


def test_a_report_counts_for_a_while() -> None:
    health = BackendHealth(keep_ms=1000)
    health.note_report("bob", "bo", now=0)
    health.note_report("bob", "ba", now=500)
    assert health.unhealthy_agents(999) == {("bob", "bo"), ("bob", "ba")}
    assert health.unhealthy_agents(1000) == {("bob", "ba")}
    health.note_report("bob", "ba", now=1400)
    assert health.unhealthy_agents(2000) == {("bob", "ba")}
    assert not health.unhealthy_agents(2400)


def test_a_node_has_a_bound_of_its_own() -> None:
    health = BackendHealth(keep_ms=1000)
    for number in range(MAX_REPORTS_PER_NODE + 9):
        health.note_report("eve", f"a{number}", now=0)
    health.note_report("bob", "bo", now=0)
    found = health.unhealthy_agents(1)
    assert len(found) == MAX_REPORTS_PER_NODE + 1 and ("bob", "bo") in found
