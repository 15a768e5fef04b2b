"""A gateway with the clock of CLOCK_FILE, and with the version that stands in VERSION_FILE."""

import os
from pathlib import Path
from unittest.mock import patch

from gatepost.clock import SystemClock
from gatepost.delivery.frames import ReachAnswer
from gatepost.links.service import reach_checks
from tests.forked_gateways import run_gateway


def run_odd_gateway(arguments: list[str]) -> None:
    clock, version = (Path(os.environ[name]) for name in ("CLOCK_FILE", "VERSION_FILE"))
    usual = SystemClock().now

    def shifted_time(_: SystemClock) -> int:
        return usual() + (int(clock.read_text()) * 1000 if clock.exists() else 0)

    def answer_oddly(*values: object, **named: object) -> ReachAnswer:
        if version.exists():
            named["version"] = version.read_text()
        return ReachAnswer(*values, **named)  # type: ignore[arg-type]

    with (
        patch.object(reach_checks, "ReachAnswer", answer_oddly),
        patch.object(SystemClock, "now", shifted_time),
    ):
        run_gateway(arguments)
