"""Runs the terminal UI without a terminal, and reads its screen as text."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from textual.pilot import Pilot

from gatepost.tui.app import TopApp
from gatepost.tui.operator_api import OperatorApi
from tests.tui.stand_in_api import NOW
from tests.waiting import async_wait_until

NARROW, FULL = (80, 24), (200, 40)
_SCREENS = Path(__file__).with_name("screens")
# Write the screens that the tests compare with, instead of comparing.
_WRITES = "GATEPOST_WRITE_SCREENS"
_SETTLED_SECS = 1.0


class Top:
    """The application, and its pilot."""

    def __init__(self, app: TopApp, pilot: Pilot[None]) -> None:
        self.app = app
        self.pilot = pilot

    @property
    def screen(self) -> str:
        strips = self.app.screen._compositor.render_strips()
        return "\n".join(strip.text.rstrip() for strip in strips) + "\n"

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def type(self, text: str) -> None:
        for char in text:
            await self.pilot.press("space" if char == " " else char)

    async def wait_for(self, *texts: str) -> None:
        """Wait until all texts are on the screen."""
        try:
            await async_wait_until(lambda: all(text in self.screen for text in texts))
        except AssertionError:
            raise AssertionError(f"{texts} is not on the screen:\n{self.screen}") from None

    async def expect_screen(self, name: str) -> None:
        """Wait until the screen is the one in the file of this name."""
        file = _SCREENS / f"{name}.{self.app.size.width}.txt"
        if os.environ.get(_WRITES):
            await self.pilot.pause(_SETTLED_SECS)
            file.parent.mkdir(exist_ok=True)
            file.write_text(self.screen, encoding="utf-8")
            return
        expected = file.read_text(encoding="utf-8")
        try:
            await async_wait_until(lambda: self.screen == expected)
        except AssertionError:
            assert self.screen == expected


@asynccontextmanager
async def running_top(
    api: OperatorApi,
    size: tuple[int, int] = NARROW,
    scope: tuple[str, ...] = (),
    first_view: str = "needs",
) -> AsyncIterator[Top]:
    app = TopApp(api, lambda: NOW, scope, first_view)
    async with app.run_test(size=size) as pilot:
        yield Top(app, pilot)
