"""Attacks on the dashboard: markup, hostile pages, stolen cookies, frames, and read-only users."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from gatepost.testing import GatewayProcess
from gatepost.web.pages.operation_pages import shown_value
from tests.gateway.tools import client
from tests.waiting import wait_until
from tests.web.conftest import CHROMIUM, create_link

NASTY = '<script>alert(1)</script>"><img src=x onerror=alert(2)>'


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    home = tmp_path_factory.mktemp("attacked") / "state"
    settings = {"mailbox__max_retries": 0, "limits__wrong_tokens_per_min": 100_000}
    with GatewayProcess(home, **settings) as running:
        with client(running) as http:
            http.put("/v1/agents/bo").raise_for_status()
            body = {"from_agent": "an", "to_agent": "bo", "payload": NASTY, "subject": NASTY}
            http.post("/v1/messages", json=body).raise_for_status()
            mail = http.post("/v1/mailboxes/bo/dequeue", json={"wait_secs": 20}).json()
            receipts = [each["receipt"] for each in mail["messages"]]
            nacked = {"receipts": receipts, "reason": NASTY}
            http.post("/v1/mailboxes/bo/nack", json=nacked).raise_for_status()
            http.post("/v1/messages", json=body).raise_for_status()
        yield running


@contextmanager
def log_in(gateway: GatewayProcess, *, read_only: bool = False) -> Iterator[httpx.Client]:
    code = create_link(gateway, read_only=read_only).partition("#")[2]
    with httpx.Client(base_url=gateway.url, timeout=60) as browser:
        answer = browser.post("/login", data={"code": code}, headers={"origin": gateway.url})
        assert answer.status_code == 303, answer.text
        yield browser


def form_secret(browser: httpx.Client) -> str:
    text = browser.get("/").text
    return text.partition('name="form_secret" value="')[2].partition('"')[0]


PAGES = ("/", "/messages", "/dead-letters", "/agents", "/agents/bo", "/incidents", "/audit")


def test_markup_in_names_reasons_and_payloads_stays_text(gateway: GatewayProcess) -> None:
    with log_in(gateway) as browser:
        for path in PAGES:
            text = browser.get(path).text
            assert "<script>alert" not in text and "<img" not in text, path
        assert "&lt;script&gt;alert(1)" in browser.get("/dead-letters").text
        answer = browser.get("/messages", params={"q": NASTY, "term": NASTY, "before": NASTY})
        assert "<img" not in answer.text and "<script>alert" not in answer.text
        answer = browser.get("/do/send", params={"agent": NASTY, "text": NASTY, "back": NASTY})
        assert "<img" not in answer.text and "<script>alert" not in answer.text


def test_every_answer_forbids_frames_scripts_of_others_and_caches(gateway: GatewayProcess) -> None:
    with log_in(gateway) as browser:
        for path in ("/", "/login", "/static/app.js", "/do/send?agent=bo&text=x", "/nowhere"):
            answer = browser.get(path)
            if path == "/nowhere":
                assert answer.status_code == 404
                continue
            policy = answer.headers["content-security-policy"]
            assert "frame-ancestors 'none'" in policy and "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["x-frame-options"] == "DENY"
            assert answer.headers["cache-control"] == "no-store"
            assert "<script>" not in answer.text and " style=" not in answer.text


def test_a_cookie_is_out_of_reach_for_scripts_and_other_sites(gateway: GatewayProcess) -> None:
    code = create_link(gateway).partition("#")[2]
    answer = httpx.post(f"{gateway.url}/login", data={"code": code})
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    assert code not in answer.headers["location"]
    again = httpx.post(f"{gateway.url}/login", data={"code": code})
    assert again.status_code == 401


def test_strangers_see_nothing_of_the_gateway(gateway: GatewayProcess) -> None:
    with httpx.Client(base_url=gateway.url) as stranger:
        for path in (
            *PAGES,
            "/settings",
            "/changes",
            "/do/send",
            "/messages/x",
            "/messages/x/proof",
        ):
            answer = stranger.get(path)
            assert answer.status_code == 401, path
            assert "alert" not in answer.text
        cookie = {"cookie": "gatepost_000000000000=" + "0" * 64}
        assert stranger.get("/", headers=cookie).status_code == 401
        assert stranger.post("/do/send", data={"agent": "bo"}).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://127.0.0.1:9"},
        {"origin": "null"},
        {"origin": "https://evil.example"},
        {"host": "evil.example"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "cross-site"},
    ],
)
def test_pages_of_others_and_foreign_names_are_refused(
    gateway: GatewayProcess, headers: dict[str, str]
) -> None:
    with log_in(gateway) as browser:
        secret = form_secret(browser)
        for path in ("/", "/messages"):
            assert browser.get(path, headers=headers).status_code == 403
        form = {"agent": "bo", "text": "forged", "form_secret": secret}
        assert browser.post("/do/send", data=form, headers=headers).status_code == 403
        assert browser.get("/changes", headers=headers).status_code == 403
        code = create_link(gateway).partition("#")[2]
        assert browser.post("/login", data={"code": code}, headers=headers).status_code == 403


def test_a_form_without_the_secret_of_its_session_changes_nothing(
    gateway: GatewayProcess,
) -> None:
    own = {"origin": gateway.url}
    with log_in(gateway) as browser, log_in(gateway) as other:
        for secret in ("", "0" * 64, form_secret(other)):
            form = {"agent": "bo", "text": "forged", "form_secret": secret}
            assert browser.post("/do/send", data=form, headers=own).status_code == 403
        form["form_secret"] = form_secret(browser)
        assert browser.post("/do/send", data=form).status_code == 403, "no origin"
        assert browser.post("/do/send", data=form, headers=own).status_code == 303


def test_a_read_only_user_changes_nothing(gateway: GatewayProcess) -> None:
    own = {"origin": gateway.url}
    with log_in(gateway, read_only=True) as browser:
        page = browser.get("/dead-letters")
        assert page.status_code == 200 and "/do/" not in page.text
        assert browser.get("/do/send?agent=bo&text=x").status_code == 403
        for action in ("send", "replay", "discard", "need", "purge", "revoke"):
            form = {"agent": "bo", "mailbox": "bo", "id": "dlq-bo", "node": "x", "text": "x"}
            form["form_secret"] = form_secret(browser)
            answer = browser.post(f"/do/{action}", data=form, headers=own)
            assert answer.status_code == 403, action
    with client(gateway) as http:
        assert http.get("/v1/mailboxes/bo/dead-letters").json()["messages"] != []


def test_a_cookie_is_worth_nothing_after_the_logout(gateway: GatewayProcess) -> None:
    with log_in(gateway) as browser:
        stolen = dict(browser.cookies)
        ended = threading.Event()

        def listen() -> None:
            with (
                httpx.Client(base_url=gateway.url, cookies=stolen, timeout=60) as thief,
                thief.stream("GET", "/changes") as stream,
            ):
                assert stream.status_code == 200
                for _ in stream.iter_lines():
                    listening.set()
            ended.set()

        listening = threading.Event()
        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        wait_until(listening.is_set)
        form = {"form_secret": form_secret(browser)}
        answer = browser.post("/logout", data=form, headers={"origin": gateway.url})
        assert answer.status_code == 303
    with httpx.Client(base_url=gateway.url, cookies=stolen) as thief:
        assert thief.get("/").status_code == 401
        assert thief.get("/changes").status_code == 401
    with client(gateway) as http:
        http.put("/v1/agents/noise").raise_for_status()
    wait_until(ended.is_set)


def test_the_way_back_stays_within_the_dashboard(gateway: GatewayProcess) -> None:
    own = {"origin": gateway.url}
    with log_in(gateway) as browser:
        for back in ("//evil.example", "https://evil.example", "/\\evil.example", "javascript:1"):
            form = {"agent": "bo", "text": "x", "back": back, "form_secret": form_secret(browser)}
            answer = browser.post("/do/send", data=form, headers=own)
            assert (answer.status_code, answer.headers["location"]) == (303, "/")


def test_settings_show_no_secret() -> None:
    assert shown_value("headers", {"authorization": "x"}) == "(hidden)"
    assert "x" not in shown_value("uri", "s3://key:x@host/bucket")
    assert shown_value("port", 7433) == "7433"


def test_the_dashboard_takes_no_secret_of_the_api(gateway: GatewayProcess) -> None:
    """The local token opens no page: only a link does, so that a token never is in a browser."""
    headers = {"authorization": f"Bearer {gateway.token}"}
    assert httpx.get(gateway.url, headers=headers).status_code == 401


def test_guessing_of_codes_is_limited(tmp_path: Path) -> None:
    with GatewayProcess(tmp_path / "state", limits__wrong_tokens_per_min=5) as gateway:
        codes = [
            httpx.post(f"{gateway.url}/login", data={"code": str(number)}).status_code
            for number in range(12)
        ]
        assert codes[0] == 401
        assert codes[-1] == 429
        link = create_link(gateway)
        good = {"code": link.partition("#")[2]}
        assert httpx.post(f"{gateway.url}/login", data=good).status_code == 303


class _HostilePage(BaseHTTPRequestHandler):
    """Frames the dashboard, posts to it and reads it, as far as a browser lets it."""

    target = ""

    def do_GET(self) -> None:
        body = f"""<!doctype html><title>hostile</title><iframe id=f src="{self.target}/"></iframe>
<form id=p method=post action="{self.target}/do/purge"><input name=mailbox value=bo></form>
<script>
window.outcome = Promise.all([
  fetch("{self.target}/", {{credentials: "include"}}).then(() => "read", () => "refused"),
  fetch("{self.target}/do/purge", {{method: "POST", mode: "no-cors", credentials: "include",
    headers: {{"content-type": "application/x-www-form-urlencoded"}}, body: "mailbox=bo"}})
    .then((answer) => answer.type, () => "refused"),
]);
</script>""".encode()
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_a_hostile_page_on_another_port_reads_frames_and_changes_nothing(
    gateway: GatewayProcess,
) -> None:
    if not Path(CHROMIUM).exists() or shutil.which("chromium") is None:
        pytest.skip("chromium is not installed, so no page was tried")
    from playwright.sync_api import sync_playwright

    handler: Any = type("Handler", (_HostilePage,), {"target": gateway.url})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with client(gateway) as http:
        before = http.get("/v1/mailboxes/bo").json()["messages"]
    try:
        with (
            sync_playwright() as playwright,
            playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"]) as browser,
        ):
            context = browser.new_context()
            page = context.new_page()
            page.goto(create_link(gateway))
            page.wait_for_selector("#ledger", timeout=60_000)
            hostile = context.new_page()
            hostile.goto(f"http://127.0.0.1:{server.server_port}/")
            assert hostile.evaluate("window.outcome") == ["refused", "refused"]
            framed = hostile.frames[-1]
            assert "ledger" not in framed.content()
            hostile.evaluate("document.getElementById('p').submit()")
            hostile.wait_for_url(f"{gateway.url}/**", timeout=60_000)
            assert "answers its own pages only" in hostile.content()
    finally:
        server.shutdown()
        server.server_close()
    with client(gateway) as http:
        assert http.get("/v1/mailboxes/bo").json()["messages"] == before != []
