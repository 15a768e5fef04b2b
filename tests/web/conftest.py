"""Three gateways, one Chromium, and axe: what the tests of the dashboard share in a file."""

import base64
import hashlib
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from gatepost.testing import GatewayProcess
from tests.gateway.tools import client
from tests.live_mesh.test_election import TIMERS, free_port, leader
from tests.live_mesh.tools import Gateway
from tests.mcp.fetched_clients import cache_folder
from tests.waiting import wait_until

CHROMIUM = "/usr/bin/chromium"
SHOTS = Path(__file__).parent.parent.parent / ".cache" / "dashboard"
# A machine that does much else is slow, and a page on it too.
PATIENCE_MS = 60_000
_AXE = "axe-core@4.14.1"
_AXE_SHA512 = (
    "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="
)


def create_link(gateway: GatewayProcess, *, read_only: bool = False) -> str:
    with client(gateway) as http:
        answer = http.post("/v1/dashboard/links", json={"read_only": read_only})
    assert answer.is_success, answer.text
    return f"{gateway.url}/login#{answer.json()['code']}"


class Visit:
    """One browser window, with all it complained of and all it asked for."""

    def __init__(self, browser: Any, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(PATIENCE_MS)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.hosts: set[str] = set()
        self.page.on("console", lambda said: self.complaints.append(said.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda asked: self.hosts.add(asked.url.split("/")[2]))

    def log_in(self, gateway: GatewayProcess, *, read_only: bool = False) -> Any:
        self.page.goto(create_link(gateway, read_only=read_only))
        self.page.wait_for_selector("#ledger")
        return self.page

    def shoot(self, name: str) -> None:
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SHOTS / f"{name}.png", full_page=True)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if not Path(CHROMIUM).exists():
        pytest.skip("chromium is not installed, so no page was tried")
    from playwright.sync_api import sync_playwright

    arguments = ["--no-sandbox", "--disable-background-networking", "--disable-gpu"]
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=CHROMIUM, args=arguments) as running,
    ):
        yield running


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Visit]]:
    """`visit(width=390)` is a window of its own, with its own cookies."""
    with ExitStack() as ends:

        @contextmanager
        def opened(width: int, height: int, scheme: str) -> Iterator[Visit]:
            made = Visit(browser, viewport={"width": width, "height": height}, color_scheme=scheme)
            try:
                yield made
            finally:
                made.context.close()

        yield lambda width=1440, height=1000, scheme="light": ends.enter_context(
            opened(width, height, scheme)
        )


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Gateway]]:
    """ann, who founded the room and leads it, bob and cat; each has an agent: an, bo and ca."""
    folder, port = tmp_path_factory.mktemp("dashboard"), free_port()
    with ExitStack() as ends:
        gateways = [
            Gateway(
                folder,
                name,
                mesh__transport="udp",
                mesh__port=port if name == "ann" else 0,
                mesh__priority=priority,
                mesh__peers=f"127.0.0.1:{port}" if name == "bob" else "",
                mailbox__max_retries=0,
                **TIMERS,
            )
            for name, priority in (("ann", 10), ("bob", 20), ("cat", 30))
        ]
        for gateway in gateways:
            gateway.spawn()
            ends.push(gateway.__exit__)
        for gateway in gateways:
            gateway.wait_ready()
        ann, bob, cat = gateways
        bob.join(ann)
        cat.join(ann)
        for gateway in gateways:
            gateway.call("PUT", f"/agents/{gateway.name[:2]}")
        agents = {"an@ann", "bo@bob", "ca@cat"}
        wait_until(lambda: all(agents <= gateway.routes() for gateway in gateways))
        wait_until(lambda: leader(*gateways) == "ann")
        yield gateways


def fetch_axe() -> str:
    """The source of axe-core, fetched once from npm; its digest is the one we know."""
    folder = cache_folder() / "axe"
    package = folder / "axe-core-4.14.1.tgz"
    if not package.exists():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("axe-core is fetched with npm, which is not installed")
        folder.mkdir(parents=True, exist_ok=True)
        wanted = [npm, "pack", _AXE, "--pack-destination", str(folder)]
        got = subprocess.run(wanted, capture_output=True, text=True, check=False)
        if got.returncode:
            pytest.skip(f"{_AXE} cannot be fetched: {got.stderr[-500:]}")
    digest = hashlib.sha512(package.read_bytes()).digest()
    assert base64.b64encode(digest).decode() == _AXE_SHA512
    with tarfile.open(package) as files:
        source = files.extractfile("package/axe.min.js")
        assert source is not None
        return source.read().decode()
