import pytest

from gatepost.access.join_secret import JoinSecret, parse_join_secret
from gatepost.errors import InvalidToken
from tests.access.harness import AccessHarness


def test_the_text_of_a_join_secret_can_be_read_back(harness: AccessHarness) -> None:
    secrets = harness.run(harness.secrets.rotate_secrets)
    join = JoinSecret.of_mesh("ab" * 16, secrets)
    assert parse_join_secret(f" {join.text}\n") == join
    assert (join.cluster_token, join.join_secret) == (secrets.cluster_token, secrets.join_secret)
    assert join.join_secret not in repr(join)


@pytest.mark.parametrize(
    "text", ["", "gpm1", "gp1.ab.cd", "gpm1." + "ab" * 16 + ".short", "x" * 9999]
)
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidToken, match="gpm1"):
        parse_join_secret(text)
