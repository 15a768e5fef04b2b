"""A job that runs again and again keeps its own session at a real gateway."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gatepost.access import Scope
from gatepost.cli.gateway_api import CliTarget
from gatepost.cli.problems import CommandProblem
from gatepost.clock import SystemClock
from gatepost.errors import Unauthorized
from gatepost.pipeline import feedback
from gatepost.pipeline.gateway_api import GatewayApi as Api
from gatepost.testing import ManualClock
from tests.cli.conftest import Cli, gateway
from tests.cli.in_process import run_in_process
from tests.gateway.admin.test_external_agents import invited
from tests.live_mesh.tools import Gateway

HOUR = 3_600_000


def current_token(target: CliTarget, clock: ManualClock | None = None) -> str:
    return target.load_token(clock).token


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(tmp_path_factory.mktemp("session"), "host", room__join_burst=10_000) as running:
        running.invite()
        yield running


@pytest.fixture
def target(host: Gateway, tmp_path: Path) -> CliTarget:
    """A file with an invite for what the pipeline has to say."""
    file = tmp_path / "pipeline.token"
    file.write_text(invited(host, "pipeline", Scope.ADMIN_FEEDBACK).json()["inviteToken"] + "\n")
    return CliTarget(host.url, file)


def test_an_invite_becomes_a_session_that_opens_what_it_is_for(target: CliTarget) -> None:
    token = current_token(target)
    assert target.token_file.stat().st_mode & 0o777 == 0o600
    assert current_token(target) == token
    incident = {"id": "d" * 32, "class": "silent_node", "subject": "bob", "detail": "away"}
    with Api(target.url, token) as api:
        said = [{**incident, "raisedAt": 5, "corrIds": []}]
        assert api.post("/v1/incidents", said, feedback.FeedbackAnswer).new == 1
        with pytest.raises(Unauthorized):
            api.fetch_node_id()


def test_a_session_is_renewed_before_it_ends(target: CliTarget) -> None:
    clock = ManualClock(SystemClock().now())
    first = current_token(target, clock)
    clock.advance(24 * HOUR)
    second = current_token(target, clock)
    assert second != first
    assert target.token_file.read_bytes().count(second.encode()) == 1


def test_a_copy_that_was_left_behind_ends_the_session_and_says_so(target: CliTarget) -> None:
    clock = ManualClock(SystemClock().now())
    current_token(target, clock)
    copy = CliTarget(target.url, target.token_file.with_name("copy.token"))
    copy.token_file.write_bytes(target.token_file.read_bytes())
    clock.advance(24 * HOUR)
    current_token(target, clock)
    with pytest.raises(CommandProblem, match="gatepost agent invite"):
        current_token(copy, clock)


def test_two_jobs_that_begin_at_once_share_one_exchange(target: CliTarget) -> None:
    found: list[str] = []
    jobs = [threading.Thread(target=lambda: found.append(current_token(target))) for _ in range(4)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join(30)
    assert len(found) == 4
    assert len(set(found)) == 1


def test_feedback_needs_nothing_but_the_invite(target: CliTarget, tmp_path: Path) -> None:
    command = ("pipeline", "feedback", "--tables", str(tmp_path), "--json")
    where = ("--url", target.url, "--token-file", str(target.token_file))
    for _ in range(2):
        ran = subprocess.run(
            [sys.executable, "-m", "gatepost.cli", *command, *where],
            capture_output=True,
            timeout=60,
            check=True,
        )
        assert [posted["found"] for posted in json.loads(ran.stdout)] == [0, 0, 0]
        assert target.token_file.read_text().startswith("{")


def test_other_tokens_are_used_as_they_are(host: Gateway, tmp_path: Path) -> None:
    file = tmp_path / "operator.token"
    file.write_text(host.token)
    assert current_token(CliTarget(host.url, file)) == host.token


@pytest.mark.parametrize("content", ["{}", "{", ""])
def test_a_file_without_a_session_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "broken.token"
    file.write_text(content)
    with pytest.raises((CommandProblem, Unauthorized), match="holds no"):
        current_token(CliTarget("http://127.0.0.1:9", file))


def test_a_gateway_that_is_away_is_told_and_uses_nothing_up(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.token"
    file.write_text("gpa1.0123456789abcdef." + "A" * 43)
    with pytest.raises(CommandProblem, match="nothing listens at"):
        current_token(CliTarget("http://127.0.0.1:9", file))
    assert file.read_text().startswith("gpa1.")


def test_a_command_for_the_operator_says_that_the_file_holds_an_agents_session(
    host: Gateway, tmp_path: Path
) -> None:
    file = tmp_path / "bot.token"
    file.write_text(invited(host, "bot", Scope.MESSAGE_SEND).json()["inviteToken"])
    where = ("--url", host.url, "--token-file", str(file))
    code, _, said = run_in_process(("nodes", *where), {}, b"")
    assert code == 1
    assert "holds the session of an external agent" in said
    assert file.read_text().startswith("{"), "the invite was exchanged by the one loader"


def test_a_job_trusts_a_gateway_by_the_pin_in_its_invite(tmp_path: Path) -> None:
    home, file = tmp_path / "vps", tmp_path / "pipeline.token"
    cli = Cli(home)
    cli.ok("init", "--public", "--host", "127.0.0.1")
    with gateway(home, lambda cli: cli("status").code == 0):
        invite = cli("agent", "invite", "pipeline", "--scope", Scope.ADMIN_FEEDBACK).out
        file.write_text(invite)
        url = json.loads((home / "endpoint.json").read_bytes())["url"]
        assert url.startswith("https://")
        where = ("--url", url, "--token-file", str(file), "--json")
        for _ in range(2):
            posted = cli("pipeline", "feedback", "--tables", str(tmp_path), *where)
            assert posted.code == 0, posted
