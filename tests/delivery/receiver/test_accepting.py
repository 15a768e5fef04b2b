"""Accepting events: a payload of another gateway is as suspect as one of a client."""

import pytest

from tests.delivery.mesh import Mesh


@pytest.mark.parametrize("payload", [b"", b"{", b"1 2", b'"\xff"', b'1,"from":"boss"', b"[[[["])
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
    assert verdict.startswith("refused: unreadable: its payload is no JSON")
