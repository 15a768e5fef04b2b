"""`gatepost top` against a stand-in for a gateway."""

import time
from collections.abc import Iterator

import pytest

from gatepost.tui.jump_targets import VIEWS
from gatepost.tui.operator_api import ActionAnswer, ActionResult
from gatepost.wire.operations import Failure
from tests.tui.running_top import FULL, NARROW, running_top
from tests.tui.stand_in_api import MESSAGE, StandInApi, make_room_ledger
from tests.waiting import async_wait_until

pytestmark = pytest.mark.anyio

LETTERS = "/v1/mailboxes/billing/dead-letters"


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Details show times of day, which are those of the machine."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("size", [NARROW, FULL], ids=["80", "200"])
async def test_every_view_looks_as_it_did(size: tuple[int, int], utc: None) -> None:
    async with running_top(StandInApi(), size) as top:
        for number, view in enumerate(VIEWS, 1):
            await top.press(str(number))
            await top.expect_screen(view.name)
        await top.press("5", "down")
        await top.wait_for("messages  3 of 3")
        await top.press("enter")
        await top.expect_screen("journey")
        await top.press("3")
        await top.wait_for("agents  4 of 4")
        await top.press("enter")
        await top.expect_screen("mail")


@pytest.mark.parametrize("size", [NARROW, FULL], ids=["80", "200"])
async def test_every_dialog_looks_as_it_did(size: tuple[int, int], utc: None) -> None:
    api = StandInApi()
    async with running_top(api, size, ("--context", "vps"), "dead") as top:
        await top.wait_for("dead  2 of 2")
        await top.press("question_mark")
        await top.expect_screen("help")
        await top.press("escape", "w", "r")
        await top.expect_screen("confirm")
        await top.press("n", "enter")
        await top.expect_screen("dead_letter")
        await top.press("escape", "4")
        await top.wait_for("tasks  3 of 3")
        await top.press("enter")
        await top.expect_screen("task")
    assert api.done == []


async def test_the_same_screen_is_the_same_picture() -> None:
    pictures = []
    for _ in range(2):
        async with running_top(StandInApi()) as top:
            await top.wait_for("needs  2 of 2")
            pictures.append(top.app.export_screenshot())
    assert pictures[0] == pictures[1]


async def test_what_is_left_to_draw_when_it_ends_is_dropped() -> None:
    async with running_top(StandInApi()) as top:
        await top.wait_for("needs  2 of 2")
    assert not top.app.screen_stack
    top.app._draw_all()


async def test_a_broken_promise_is_named_with_its_evidence() -> None:
    api = StandInApi()
    async with running_top(api, FULL) as top:
        await top.wait_for("✓ adds up over 3 gateways")
        api.answers["/v1/ledger"] = make_room_ledger(broken=True)
        api.notify("ledger")
        await top.wait_for(
            "✗ processed: every_message_is_processed_once: order-7 was processed twice",
            "gatepost pipeline audit",
        )


async def test_only_what_is_on_the_screen_is_read_again() -> None:
    api = StandInApi()
    async with running_top(api, first_view="nodes") as top:
        await top.wait_for("nodes  3 of 3")
        await async_wait_until(lambda: "/v1/room/nodes" in api.asked)
        api.asked.clear()
        api.notify("messages")
        await async_wait_until(lambda: "/v1/needs" in api.asked)
        api.notify("nodes")
        await async_wait_until(lambda: "/v1/room/nodes" in api.asked)
    assert set(api.asked) == {"/v1/needs", "/v1/room/nodes"}


async def test_a_gateway_that_goes_away_is_shown_and_found_again() -> None:
    api = StandInApi()
    async with running_top(api, FULL) as top:
        await top.wait_for("● live", "needs  2 of 2")
        api.go_away()
        await top.wait_for("✗ not connected", "it is gone; tries again")
        # What was known stays on the screen.
        assert "1,204 sent = 1,180 processed" in top.screen
        await async_wait_until(lambda: api.listened == 2)
        api.notify("ledger")
        await top.wait_for("● live", "✓ adds up")


async def test_nothing_is_done_before_write_mode() -> None:
    api = StandInApi()
    async with running_top(api, first_view="dead") as top:
        await top.wait_for("dead  2 of 2", "read-only")
        await top.press("r")
        await top.wait_for("read-only: press w before you replay")
        assert api.done == []


async def test_an_action_asks_first_and_shows_the_command_that_does_the_same() -> None:
    api = StandInApi()
    async with running_top(api, FULL, ("--context", "vps"), "dead") as top:
        await top.wait_for("dead  2 of 2")
        await top.press("w", "r")
        command = f"gatepost dlq replay billing {MESSAGE} --context vps"
        await top.wait_for(f"$ {command}")
        assert api.done == []
        await top.press("y")
        await top.wait_for(f"done: {command}")
    assert api.done == [("POST", f"{LETTERS}/replay", f'{{"msg_ids":["{MESSAGE}"]}}'.encode())]


async def test_a_need_is_met_by_its_own_action() -> None:
    api = StandInApi()
    async with running_top(api, FULL) as top:
        await top.wait_for("needs  2 of 2")
        await top.press("w", "a", "y")
        await async_wait_until(lambda: api.done)
        assert api.done == [("POST", f"{LETTERS}/replay", b'{"replayed":false}')]
        # The second one has to be decided first: there is only a command to complete.
        await top.press("down", "a")
        await top.wait_for("$ gatepost route set AGENT --owner vps-2 --fallback NODE")
        await top.press("y", "escape")
        await top.wait_for("w read-only")
    assert len(api.done) == 1


async def test_a_refused_action_says_why() -> None:
    api = StandInApi()
    api.answer = ActionAnswer(results=[ActionResult(Failure("mailbox_full", "billing is full"))])
    async with running_top(api, first_view="dead") as top:
        await top.wait_for("dead  2 of 2")
        await top.press("w", "r", "y")
        await top.wait_for("not done: billing is full")


async def test_what_others_wrote_is_shown_as_text() -> None:
    async with running_top(StandInApi(), FULL, first_view="dead") as top:
        await top.wait_for("dead  2 of 2")
        assert r"mallory\x1b[2J" in top.screen
        assert r"rejected: \x1b[31mred[/] [bold]text" in top.screen
        assert "\x1b" not in top.screen


async def test_a_filter_keeps_the_rows_that_have_its_words() -> None:
    async with running_top(StandInApi(), first_view="tasks") as top:
        await top.wait_for("tasks  3 of 3")
        await top.press("slash")
        await top.type("failed deploy")
        await top.press("enter")
        await top.wait_for("tasks  / failed deploy  1 of 3")
        await top.press("escape")
        await top.wait_for("tasks  3 of 3")


async def test_the_gateway_looks_for_what_a_filter_names() -> None:
    api = StandInApi()
    async with running_top(api, first_view="messages") as top:
        await top.wait_for("messages  3 of 3")
        await top.press("slash")
        await top.type("agent:alice carol")
        await top.press("enter")
        await top.wait_for("1 of 3")
    assert "/v1/messages?agent=alice" in api.asked


async def test_a_term_of_the_ledger_opens_its_messages() -> None:
    api = StandInApi()
    async with running_top(api) as top:
        await top.wait_for("needs  2 of 2")
        await top.press("colon")
        await top.type("dead-letters")
        await top.press("enter")
        await top.wait_for("needs › messages  / term:dead_letters")
        await top.press("colon")
        await top.type("nothing")
        await top.press("enter")
        await top.wait_for("there is no 'nothing'")
    assert "/v1/messages?term=dead_letters" in api.asked
