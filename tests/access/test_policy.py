import pytest

from gatepost.access import Policy
from gatepost.errors import ConfigError


def test_proof_is_on_unless_switched_off() -> None:
    assert Policy().require_proof
    assert Policy(profile="development").require_proof


def test_a_production_gateway_cannot_switch_proof_off() -> None:
    assert not Policy(profile="development", require_proof=False).require_proof
    with pytest.raises(ConfigError, match="production"):
        Policy(profile="production", require_proof=False)


@pytest.mark.parametrize("life", [29_999, 60_001])
def test_a_ticket_lives_30_to_60_seconds(life: int) -> None:
    with pytest.raises(ConfigError, match="30 to 60 s"):
        Policy(ticket_life=life)
