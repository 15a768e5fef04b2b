"""Accepting events: a payload of another gateway is as suspect as one of a client."""

from typing import Any

import pytest

from gatepost.events import EventKind
from gatepost.events.envelope import MAX_JSON_INT
from tests.delivery.forger import Forger
from tests.delivery.mesh import START, Mesh

DEEP = b"[" * 5000 + b"]" * 5000
LARGE = b'"' + b"x" * 1024 * 1024 + b'"'
NO_PAYLOADS = [b"", b"{", b"1 2", b'"\xff"', b'1,"from":"boss"', b"[[[[", DEEP, DEEP[4700:5300]]
SHORT = [repr(payload)[:12] for payload in (*NO_PAYLOADS, LARGE)]


@pytest.mark.parametrize("payload", [*NO_PAYLOADS, LARGE], ids=SHORT)
def test_a_payload_that_is_no_json_is_refused_and_keeps_nobody_from_their_mail(
    payload: bytes,
) -> None:
    """An honest gateway never sends one; `a` does not check what its own core is given."""
    mesh = Mesh("a", "b")
    a, b = mesh["a"], mesh["b"]
    mesh.link("a", "b")
    crafted = a.send(b, payload).event_id
    honest = a.send(b).event_id
    mesh.flow()
    assert b.mail() == [honest]
    assert a.state(crafted) == "dead_letter"
    ((verdict,),) = a.rows("SELECT verdict FROM undelivered")
    assert verdict.startswith("refused: unreadable: ")
    ((source, kind),) = b.core.abuse.counts()
    assert (source, kind) == ("a", "unreadable_payload")
    assert b.incidents("abuse")[0].startswith("a/unreadable_payload@")


@pytest.mark.parametrize("payload", NO_PAYLOADS, ids=SHORT[:-1])
@pytest.mark.parametrize("replies", ["mailbox", "caller"])
def test_a_reply_that_is_no_json_is_refused_and_spoils_neither_status_nor_mailbox(
    payload: bytes, replies: str
) -> None:
    mesh = Mesh("a", "b")
    a, b = mesh["a"], mesh["b"]
    mesh.link("a", "b")
    asked = a.send(b, replies=replies).event_id
    mesh.flow()
    Forger(b).emit(a, payload, kind=EventKind.REPLY, ref_event_id=asked, pair_seq=1)
    mesh.flow()
    assert a.mail() == []
    assert a.state(asked) == "accepted"
    assert a.rows("SELECT reply FROM delivery WHERE reply IS NOT NULL") == []
    assert ("b", "unreadable_payload") in a.core.abuse.counts()


def test_no_date_of_another_gateway_is_beyond_bounds_or_ahead_of_everybody() -> None:
    mesh = Mesh("a", "b", "c")
    a, b, c = mesh["a"], mesh["b"], mesh["c"]
    mesh.link("a", "b")
    mesh.link("c", "b")
    a.send(b)
    mesh.flow()
    never: dict[str, Any] = {"expires_at": MAX_JSON_INT, "not_before": MAX_JSON_INT - 1}
    Forger(c).emit(b, **never)
    mesh.flow()
    ten_years = START + 10 * 365 * 86_400_000
    rows = b.rows("SELECT expires_at, not_before FROM mail WHERE not_before > 0")
    assert rows == [(ten_years, ten_years)]
