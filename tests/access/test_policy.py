import pytest

from gatepost.access import AccessPolicy
from gatepost.errors import ConfigError


def test_proof_is_on_unless_switched_off() -> None:
    assert AccessPolicy().require_proof
    assert AccessPolicy(profile="development").require_proof


def test_a_production_gateway_cannot_switch_proof_off() -> None:
    assert not AccessPolicy(profile="development", require_proof=False).require_proof
    with pytest.raises(ConfigError, match="production"):
        AccessPolicy(profile="production", require_proof=False)
    with pytest.raises(ConfigError, match="production"):
        AccessPolicy(profile="production", allow_keyless=True)


@pytest.mark.parametrize("ttl", [29_999, 60_001])
def test_a_ticket_lives_30_to_60_seconds(ttl: int) -> None:
    with pytest.raises(ConfigError, match="30 to 60 s"):
        AccessPolicy(ticket_life=ttl)
