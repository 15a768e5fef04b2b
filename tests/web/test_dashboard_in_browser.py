"""The dashboard in a real browser, on three real gateways."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import choose
from tests.gateway.tools import client
from tests.live_mesh.tools import Gateway
from tests.waiting import wait_until
from tests.web.conftest import Visit, fetch_axe

Open = Callable[..., Visit]
PAGES = (
    *("/", "/mesh", "/agents", "/messages", "/tasks", "/dead-letters", "/capabilities"),
    *("/incidents", "/objectives", "/room", "/settings", "/audit", "/write", "/needs", "/time"),
)
_AXE_RUN = """async () => {
  const found = await axe.run(document, {resultTypes: ["violations"]});
  return found.violations
    .filter((each) => ["serious", "critical"].includes(each.impact))
    .map((each) => `${each.id}: ${each.nodes.map((node) => node.html).join(" | ")}`);
}"""


def send(sender: Gateway, to: str, payload: object = "hi") -> str:
    body = {"from_agent": sender.name[:2], "to_agent": to, "payload": payload}
    return str(sender.call("POST", "/messages", body)["event_id"])


def take(gateway: Gateway, limit: int = 50) -> list[str]:
    box = gateway.name[:2]
    wanted = {"wait_secs": 30, "limit": limit}
    taken = gateway.call("POST", f"/mailboxes/{box}/dequeue", wanted)
    return [each["receipt"] for each in taken["messages"]]


def settle(gateway: Gateway, how: str, receipts: list[str]) -> None:
    gateway.call("POST", f"/mailboxes/{gateway.name[:2]}/{how}", {"receipts": receipts})


def fail(gateway: Gateway, count: int) -> None:
    """So many turns of the gateway's agent fail."""
    for _ in range(count):
        settle(gateway, "nack", take(gateway, 1))


def term(page: Any, name: str) -> int:
    return int(page.locator(f"#term-{name} b").inner_text().replace(",", ""))


def confirm(page: Any, *, danger: bool = False) -> None:
    """Confirm the action in the dialog, which shows the command that does the same."""
    dialog = page.locator("dialog[open]")
    assert dialog.locator("code").inner_text().startswith("gatepost ")
    dialog.locator("button[type=submit].danger" if danger else "button[type=submit].prim").click()
    page.wait_for_selector(".notice")


def test_an_operator_follows_messages_and_mends_what_breaks(
    room: list[Gateway], visit: Open
) -> None:
    ann, bob, cat = room
    window = visit()
    page = window.log_in(ann)
    assert "#" not in page.url and "code" not in page.url, "no secret stays in the address"

    # Three live gateways, the one that leads, and an empty ledger that adds up.
    page.wait_for_selector("#live[data-state=on]")
    assert page.locator("#mesh .nd").count() == 3
    assert page.locator("#mesh .nd.ok").count() == 3
    assert "publisher: ann" in page.locator("#mesh header").inner_text()
    assert "3 of 3 outboxes" in page.locator("#ledger .say").inner_text()

    # A message, from sent to processed: the page follows by itself.
    before = term(page, "processed")
    id = send(ann, "bo")
    page.wait_for_selector(f"#messages a[href='/messages/{id}']")
    settle(bob, "ack", take(bob))
    page.wait_for_function(
        "n => Number(document.querySelector('#term-processed b').textContent) > n", arg=before
    )
    page.click(f"#messages a[href='/messages/{id}']")
    page.wait_for_selector("#steps li:has-text('processed')")
    assert page.locator(".lane").count() == 2, "a lane for each gateway"
    window.shoot("journey-light-1440")
    proof = window.context.request.get(f"{ann.url}/messages/{id}/proof")
    assert proof.ok and len(proof.body()) > 500, "what `Copy proof` copies"

    # Dead letters, replayed in bulk.
    for _ in range(3):
        send(ann, "an")
    fail(ann, 3)
    page.goto(f"{ann.url}/dead-letters")
    page.wait_for_selector("#list tbody tr >> nth=2")
    window.shoot("dead-letters-light-1440")
    page.click("#bulk a:has-text('Replay all')")
    confirm(page)
    assert "3 done" in page.locator(".notice").inner_text()
    assert page.locator("#list tbody tr").count() == 0
    settle(ann, "ack", take(ann))

    # A task is cancelled.
    with client(ann) as http:
        made = http.post("/api/hub/tasks", json={"agent_name": "bo", "description": "Paint it"})
        assert made.is_success, made.text
    page.goto(f"{ann.url}/tasks")
    page.click("#list a:has-text('Paint it')")
    page.click("a:has-text('Cancel task')")
    confirm(page, danger=True)
    page.wait_for_selector("#facts .chip:has-text('cancelled')")

    # A word to an agent.
    page.goto(f"{ann.url}/agents/bo")
    page.fill("#write textarea", "<b>Are you there?</b>")
    page.fill("#write input[name=subject]", "a question")
    page.click("#write button:has-text('Send')")
    confirm(page)
    with client(bob) as http:
        wait_until(lambda: "a question" in http.get("/v1/mailboxes/bo").text)

    # A gateway dies: the map and the ledger say so, and another one leads.
    page.goto(ann.url)
    page.wait_for_selector("#mesh .nd.ok >> nth=2")
    cat.kill9()
    page.wait_for_selector("#ledger .chip:has-text('cat unknown')")
    page.wait_for_selector("#mesh .nd.dead")
    send(ann, "ca")
    page.wait_for_selector("#needs li:has-text('cat')")
    window.shoot("gateway-dead-light-1440")
    cat.start()
    page.wait_for_selector("#ledger .chip:has-text('3 of 3 outboxes')")
    page.wait_for_selector("#mesh .nd.ok >> nth=2")
    page.goto(f"{ann.url}/mesh")
    page.click("a:has-text('Hand the lease over')")
    confirm(page)
    # The publisher hands its lease over, its successor dies, and another one takes over.
    led_by = "#map header:has-text('publisher: {}'), #map header:has-text('publisher: {}')"
    page.wait_for_selector(led_by.format("bob", "cat"))
    header = page.locator("#map header").inner_text()
    successor, other = (bob, cat) if "publisher: bob" in header else (cat, bob)
    successor.kill9()
    page.wait_for_selector(led_by.format("ann", other.name))
    successor.start()

    # Every action is in the audit log, and so is the end of the session.
    page.goto(f"{ann.url}/audit")
    said = page.locator("#list").inner_text()
    for action in ("dashboard.login", "dashboard.replay", "dashboard.cancel-task",
                   "dashboard.send", "dashboard.release"):  # fmt: skip
        assert action in said
    page.click("button:has-text('Log out')")
    page.wait_for_selector("#login")
    page.goto(ann.url)
    page.wait_for_selector("#login")
    assert [c for c in window.complaints if "401" not in c] == []
    assert window.hosts == {f"127.0.0.1:{ann.port}"}


@pytest.mark.parametrize(
    ("width", "scheme", "pages"),
    [
        (1440, "light", PAGES),
        (390, "dark", PAGES),
        (1440, "dark", PAGES[: choose(4, len(PAGES))]),
        (390, "light", PAGES[: choose(4, len(PAGES))]),
    ],
)
def test_every_page_is_readable_in_each_width_and_scheme(
    room: list[Gateway], visit: Open, width: int, scheme: str, pages: tuple[str, ...]
) -> None:
    ann, _, _ = room
    send(ann, "bo", {"text": "wide " * 200})
    window = visit(width, 844 if width == 390 else 1000, scheme)
    page = window.log_in(ann)
    axe = fetch_axe()
    for path in pages:
        page.goto(f"{ann.url}{path}")
        page.wait_for_selector("#live[data-state=on]")
        page.evaluate(axe)
        assert page.evaluate(_AXE_RUN) == [], path
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, f"{path} scrolls sideways: {wide}"
        if path in ("/", "/messages", "/mesh", "/settings", "/objectives", "/agents", "/time"):
            window.shoot(f"{path.strip('/') or 'overview'}-{scheme}-{width}")
    assert window.complaints == []
    assert window.hosts == {f"127.0.0.1:{ann.port}"}


def test_keys_lead_everywhere(room: list[Gateway], visit: Open) -> None:
    ann, _, _ = room
    page = visit().log_in(ann)
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.type("bo")
    page.keyboard.press("Enter")
    page.wait_for_url("**/messages?q=bo")
    page.keyboard.press("?")
    assert page.locator("#keys[open]").is_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.wait_for_url("**/tasks")


def test_a_planted_loss_turns_its_term_red_within_a_second(
    room: list[Gateway], visit: Open
) -> None:
    ann, _, _ = room
    page = visit().log_in(ann)
    page.wait_for_selector("#live[data-state=on]")
    found = {
        "id": "lost",
        "class": "audit_violation",
        "subject": "missing_events: An outbox is archived as far as others have read it.",
        "detail": "events 7 to 9 of bob are in no archive",
        "raisedAt": 1_700_000_000_000,
    }
    ann.call("POST", "/incidents", [found])
    page.wait_for_selector("#term-waiting.broken")
    assert "does not add up" in page.locator("#ledger h1").inner_text()
    assert "events 7 to 9 of bob" in page.locator(".broken-list").inner_text()
    page.click("#needs li:has-text('promise is broken') a")
    confirm(page)
    page.wait_for_selector("#ledger h1:has-text('Every message is accounted for')")
