"""The core is put together in one place, the same for gateways, simulations and tests."""

from pathlib import Path
from typing import get_args

import gatepost
from gatepost.delivery import LocalNode, RetryPolicy, build_core
from gatepost.delivery.decisions import Decision
from gatepost.events import NodeKey
from gatepost.mailbox import MailboxPolicy
from gatepost.testing import ManualClock


def test_every_decision_has_a_handler() -> None:
    clock = ManualClock()
    node = LocalNode("a", "a-1", NodeKey.generate(clock), clock)
    core = build_core(node, RetryPolicy(), MailboxPolicy())
    assert set(core.coordinator._handlers) == set(get_args(Decision))


def test_mail_closed_by_time_is_reported_before_the_outbox_is_signed() -> None:
    clock = ManualClock()
    node = LocalNode("a", "a-1", NodeKey.generate(clock), clock)
    core = build_core(node, RetryPolicy(), MailboxPolicy())
    assert core.participants == (core.dispatcher, core.coordinator, core.outbox, core.abuse)


def test_nobody_else_builds_a_coordinator() -> None:
    source = Path(gatepost.__file__).parent
    builders = [path for path in source.rglob("*.py") if "DeliveryCoordinator(" in path.read_text()]
    assert [path.name for path in builders] == ["assembly.py"]
