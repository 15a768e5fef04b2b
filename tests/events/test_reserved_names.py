import pytest

from gatepost.errors import ReservedName
from gatepost.events.reserved_names import (
    is_reserved_name,
    qualify_sender,
    require_agent_name,
    require_sender_name,
    unqualify_sender,
)


@pytest.mark.parametrize("name", ["operator", "cli", "hub", "gateway", "Operator", "CLI", "HuB"])
def test_no_agent_has_a_reserved_name_in_any_case(name: str) -> None:
    assert is_reserved_name(name)
    with pytest.raises(ReservedName):
        require_agent_name(name)


@pytest.mark.parametrize("name", ["bo", "operators", "cli2", "hub-1", "my.gateway"])
def test_other_names_are_free(name: str) -> None:
    assert require_agent_name(name) == require_sender_name(name) == name
    assert qualify_sender(name, "vps") == name


def test_the_operator_sends_as_itself_and_only_a_gateway_as_gateway_or_hub() -> None:
    assert [require_sender_name(name) for name in ("operator", "cli")] == ["operator", "cli"]
    for name in ("gateway", "hub", "Operator", "CLI"):
        with pytest.raises(ReservedName):
            require_sender_name(name)


def test_a_reserved_name_shows_the_gateway_that_it_speaks_for() -> None:
    assert qualify_sender("operator", "vps") == "operator@vps"
    assert qualify_sender("Operator", "vps") == "Operator@vps"
    assert [unqualify_sender(name) for name in ("operator@vps", "bo")] == ["operator", "bo"]
