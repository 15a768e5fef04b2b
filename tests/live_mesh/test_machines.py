"""Machines in network namespaces, with TLS, set up by exactly the commands the README shows."""

import json
import re
from pathlib import Path

import pytest

from tests.live_mesh.machines import ROOT, Machine, MachineNetwork, missing_for_machines
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(
    bool(missing_for_machines()), reason=f"no machines here: {missing_for_machines()}"
)
_PROMPT = re.compile(r"(vps|laptop)\$ (.*?)(?:\s{2,}#.*)?")


def readme_commands(heading: str) -> list[tuple[str, str]]:
    """(machine, line) of each command in the console block that follows this text."""
    text = (ROOT / "README.md").read_text().partition(heading)[2]
    assert text, f"the README no longer says {heading!r}"
    block = text.partition("```console\n")[2].partition("```")[0]
    found = [_PROMPT.fullmatch(line) for line in block.splitlines() if line]
    assert found and all(found), block
    return [(match[1], match[2]) for match in found if match is not None]


def follow_readme(network: MachineNetwork, heading: str) -> str:
    """Type the commands of the README, each on its machine; return the output of the last."""
    said = ""
    for name, line in readme_commands(heading):
        machine = network.machines[name]
        said = machine.run(line.replace("EVENT_ID", _last_event(said)))
        if line.endswith("&"):
            machine.wait_until_up()
    return said


def _last_event(said: str) -> str:
    found = re.findall(r"[0-9a-f]{8}-[0-9a-f-]{27}", said)
    return found[-1] if found else ""


def _knows_agents(machine: Machine, *agents: str) -> bool:
    listed = machine.run(".venv/bin/gatepost agent list --room --json")
    return set(agents) <= {each["id"] for each in json.loads(listed)}


def _waiting_mail(machine: Machine, agent: str) -> int:
    return len(json.loads(machine.run(f".venv/bin/gatepost inbox {agent} --json"))["messages"])


def test_the_readme_connects_two_machines(tmp_path: Path) -> None:
    with MachineNetwork(tmp_path, "vps", "laptop") as network:
        nodes = follow_readme(network, "An invite connects two machines.")
        assert "vps\tbackbone\tonline\tdirectly" in nodes
        assert "laptop\tedge\tonline\tthis one" in nodes
        journey = follow_readme(network, "reach each other by name:")
        assert "accepted" in journey
        for machine in network.machines.values():
            assert '"level":"warning"' not in machine.log(), machine.log()


@pytest.mark.full
def test_a_third_machine_reaches_both_through_cuts_and_a_power_off(tmp_path: Path) -> None:
    with MachineNetwork(tmp_path, "vps", "laptop", "lab") as network:
        vps, laptop, lab = network.machines.values()
        follow_readme(network, "An invite connects two machines.")
        follow_readme(network, "reach each other by name:")
        vps.run(".venv/bin/gatepost invite --node lab > token")
        vps.run("scp token lab:")
        lab.run(".venv/bin/gatepost up &")
        lab.wait_until_up()
        lab.run(".venv/bin/gatepost join https://vps.example:7433 --token-file token")
        lab.run(".venv/bin/gatepost agent add tester")
        wait_until(lambda: _knows_agents(lab, "architect", "summariser"), 20)
        for agent in ("architect", "summariser"):
            lab.run(f".venv/bin/gatepost send {agent} hello --wait accepted")
        wait_until(lambda: _knows_agents(laptop, "tester"), 20)
        laptop.run(".venv/bin/gatepost send tester hello --wait accepted")
        with network.cut("laptop"):
            laptop.run(".venv/bin/gatepost send architect later")
            vps.power_off()
        vps.run(".venv/bin/gatepost up &")
        vps.wait_until_up()
        wait_until(lambda: _waiting_mail(vps, "architect") == 3, 60)
        for machine in network.machines.values():
            assert "Traceback" not in machine.log(), machine.log()
