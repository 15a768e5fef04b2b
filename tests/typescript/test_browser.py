"""The client in a real browser: a page of an allowed origin, and one of another."""

import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gatepost.client import SyncClient
from gatepost.testing import GatewayProcess
from tests.typescript.conftest import ROOT

CHROMIUM = "/usr/bin/chromium"
REQUEST = """async ([url, token]) => {
  const { Client } = await import("/gatepost.js");
  const client = new Client({ name: "page", url, token });
  const sent = await client.send("clerk", { from: "a page" }, { timeoutSecs: 5 });
  const [message] = await client.receive({ waitSecs: 10 });
  const payload = message.payload;
  await message.ack();
  return { id: sent.event_id, payload };
}"""
REFUSAL = """async ([url, token]) => {
  const { Client } = await import("/gatepost.js");
  const client = new Client({ name: "page", url, token });
  const sending = client.send("clerk", "spam", { timeoutSecs: 1 });
  return sending.catch((error) => error.code);
}"""


class _QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Two origins that serve the client and an empty page."""
    folder = tmp_path_factory.mktemp("pages")
    shutil.copy(ROOT / "clients" / "typescript" / "gatepost.js", folder)
    (folder / "index.html").write_text("<!doctype html><title>page</title>")
    handler = partial(_QuietHandler, directory=str(folder))
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), handler) for _ in range(2)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    yield [f"http://127.0.0.1:{server.server_port}" for server in servers]
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def gateway(pages: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    home = tmp_path_factory.mktemp("browser") / "state"
    with GatewayProcess(home, room__allowed_origins=pages[0]) as running:
        yield running


@pytest.fixture
def page() -> Iterator[Any]:
    if not Path(CHROMIUM).exists():
        pytest.skip("chromium is not installed, so no page was tried")
    from playwright.sync_api import sync_playwright

    arguments = ["--no-sandbox", "--disable-background-networking"]
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=CHROMIUM, args=arguments) as browser,
    ):
        yield browser.new_page()


def test_a_page_of_an_allowed_origin_sends_and_receives_with_a_token(
    gateway: GatewayProcess, pages: list[str], page: Any
) -> None:
    with SyncClient("clerk", state_dir=gateway.state_dir) as clerk:
        clerk.register("clerk")
        clerk.register("page")
        clerk.send("page", "welcome")
        page.goto(pages[0])
        said = page.evaluate(REQUEST, [gateway.url, gateway.token])
        assert said["payload"] == "welcome"
        (mail,) = clerk.dequeue("clerk", wait_secs=5)
        assert (mail.msg_id, mail.from_) == (said["id"], "page")
        assert mail.payload == {"from": "a page"}
        clerk.ack("clerk", mail.receipt)


def test_a_page_of_another_origin_does_nothing_even_with_the_token(
    gateway: GatewayProcess, pages: list[str], page: Any
) -> None:
    with SyncClient("clerk", state_dir=gateway.state_dir) as clerk:
        clerk.register("clerk")
        page.goto(pages[1])
        assert page.evaluate(REFUSAL, [gateway.url, gateway.token]) == "deadline_exceeded"
        assert clerk.dequeue("clerk") == []
