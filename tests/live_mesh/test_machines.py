"""Machines in network namespaces, with TLS, set up by exactly the commands the README shows.

The blocks of the README run in order, on hosts that are called `box-N`, not as in its text. All of
it needs Linux and root: elsewhere every test here is skipped, and nothing runs the README. In
continuous integration as root, with `CI=true`, these tests fail where they cannot run.
"""

import json
import re
from pathlib import Path

import pytest

from tests.live_mesh.machines import ROOT, Machine, MachineNetwork, require_machines
from tests.waiting import wait_until

_PROMPT = re.compile(r"(\w*)\$ (.*?)(?:\s{2,}#.*)?")
# The machine of a prompt without a name.
_DESK = "desk"


@pytest.fixture(autouse=True)
def _machines() -> None:
    require_machines()


def readme_block(heading: str, language: str = "console") -> str:
    """The first block in this language after this text."""
    text = (ROOT / "README.md").read_text().partition(heading)[2]
    assert text, f"the README no longer says {heading!r}"
    return text.partition(f"```{language}\n")[2].partition("```")[0]


def follow_readme(network: MachineNetwork, heading: str) -> list[str]:
    """Type the commands of the README, each on its machine; return what each printed."""
    block, said = readme_block(heading), [""]
    for line in filter(None, block.splitlines()):
        match = _PROMPT.fullmatch(line)
        assert match is not None, line
        command = match[2].replace("EVENT_ID", _last_event(said[-1]))
        said.append(network.machines[match[1] or _DESK].run(command))
    return said[1:]


def _last_event(said: str) -> str:
    found = re.findall(r"[0-9a-f]{8}-[0-9a-f-]{27}", said)
    return found[-1] if found else ""


def _knows_agents(machine: Machine, *agents: str) -> bool:
    listed = machine.run(".venv/bin/gatepost agent list --room --json")
    return set(agents) <= {each["id"] for each in json.loads(listed)}


def _waiting_mail(machine: Machine, agent: str) -> int:
    return len(json.loads(machine.run(f".venv/bin/gatepost inbox {agent} --json"))["messages"])


def test_the_readme_runs_an_agent_on_one_machine(tmp_path: Path) -> None:
    with MachineNetwork(tmp_path, _DESK) as network:
        desk = network.machines[_DESK]
        follow_readme(network, "## Use it")
        example = (ROOT / "examples" / "summariser.py").read_text()
        assert readme_block("An agent takes ten lines", "python") == example
        (desk.home / "examples").symlink_to(ROOT / "examples")
        added, _, sent, inbox, letters, status = follow_readme(network, "Run it, and talk to it")
        assert "summariser" in added
        assert "replied ok" in sent
        assert '"summary"' in sent
        assert "no mail" in inbox
        assert "no matching dead letters" in letters
        assert desk.host_name in status


def _unexpected_warnings(log: str) -> list[str]:
    """All but the one about root, which these machines have for their networks."""
    warnings = [line for line in log.splitlines() if '"level":"warning"' in line]
    return [line for line in warnings if "the gateway runs as root" not in line]


def test_the_readme_connects_two_machines(tmp_path: Path) -> None:
    with MachineNetwork(tmp_path, "vps", "laptop") as network:
        vps, laptop = network.machines.values()
        nodes = follow_readme(network, "An invite connects two machines.")[-1]
        assert f"{vps.host_name}\tbackbone\tonline, linked" in nodes
        assert f"{laptop.host_name}\tedge\tonline, this one" in nodes
        *_, journey, proof = follow_readme(network, "reach each other by name:")
        assert "accepted" in journey
        verify = proof.splitlines()[-1]
        assert "the proof verifies" in laptop.run(f".venv/bin/{verify}")
        for machine in network.machines.values():
            assert _unexpected_warnings(machine.log()) == []


@pytest.mark.full
def test_a_third_machine_reaches_both_through_cuts_and_a_power_off(tmp_path: Path) -> None:
    with MachineNetwork(tmp_path, "vps", "laptop", "lab") as network:
        vps, laptop, lab = network.machines.values()
        follow_readme(network, "An invite connects two machines.")
        follow_readme(network, "reach each other by name:")
        vps.run(f".venv/bin/gatepost invite --node {lab.host_name} > token")
        vps.run("scp token lab:")
        lab.run(".venv/bin/gatepost up --detach")
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
