import segno

from gatepost.access import invite_qr
from tests.access.harness import AccessHarness

# (upper module light, lower module light), as a terminal draws light.
HALVES = {"█": (True, True), "▀": (True, False), "▄": (False, True), " ": (False, False)}


def modules(drawn: str) -> list[list[bool]]:
    """Which modules are dark, read back from what the terminal shows."""
    rows: list[list[bool]] = []
    for line in drawn.splitlines():
        rows += [[not HALVES[letter][half] for letter in line] for half in (0, 1)]
    return rows


def test_the_terminal_shows_the_invite_with_a_quiet_zone_around_it(harness: AccessHarness) -> None:
    token = harness.invite("mbp-jane").token
    shown = modules(invite_qr.render_qr(token))
    expected = [[bool(m) for m in row] for row in segno.make_qr(token, error="l").matrix]
    size = len(expected)
    assert [row[2 : 2 + size] for row in shown[2 : 2 + size]] == expected
    assert not any(any(row[:2]) or any(row[-2:]) for row in shown[: size + 4])
    assert not any(map(any, shown[:2]))


def test_an_invite_fits_a_terminal_of_80_by_24(harness: AccessHarness) -> None:
    lines = invite_qr.render_qr(harness.invite("mbp-jane").token).splitlines()
    assert len(lines) <= 22
    assert max(map(len, lines)) <= 80
