"""The user that a session gets: it is not root, whatever its gateway and the settings are."""

import os
from collections.abc import Callable, Iterator

import pytest

from gatepost.errors import ConfigError, LaunchFailed
from gatepost.tasks.runtimes import session_user
from gatepost.tasks.runtimes.session_user import (
    SessionUser,
    check_session_user,
    choose_session_user,
)


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """The gateway runs as root; the call says which uids above 0 its user namespace has."""
    monkeypatch.setattr(session_user, "is_root", lambda: True)

    def map_users(size: int) -> None:
        monkeypatch.setattr(session_user, "_is_mapped", lambda first, count: first + count <= size)

    map_users(2**32)
    yield map_users


def test_a_gateway_of_another_user_than_root_has_sessions_of_its_own_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_user, "is_root", lambda: False)
    assert choose_session_user("s1") == SessionUser(os.geteuid(), os.getegid())
    with pytest.raises(ConfigError, match="needs a gateway that runs as root"):
        check_session_user("nobody")


@pytest.mark.parametrize("size", [2**32, 65_536])
def test_each_session_of_root_has_a_user_of_its_own(root: Callable[[int], None], size: int) -> None:
    root(size)
    one, other = choose_session_user("s1"), choose_session_user("s2")
    assert one.is_private and one.uid == one.gid
    assert 0 < one.uid < size and 0 < other.uid < size
    assert one.uid != other.uid
    assert choose_session_user("s1") == one, "also after a restart of the gateway"


def test_where_there_is_no_other_user_nothing_is_launched(root: Callable[[int], None]) -> None:
    root(1)
    with pytest.raises(LaunchFailed, match="no session runs as root"):
        choose_session_user("s1")


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("name", ["root", "0", "no such user", "99999999999999999999"])
def test_the_settings_name_a_user_that_exists_and_is_not_root(name: str) -> None:
    for check in (check_session_user, lambda name: choose_session_user("s1", name)):
        with pytest.raises(ConfigError, match=r"hub\.session_user"):
            check(name)


@pytest.mark.usefixtures("root")
def test_all_sessions_have_the_user_that_the_settings_name() -> None:
    found = choose_session_user("s1", "nobody")
    assert found == choose_session_user("s2", "nobody")
    assert found.uid > 0 and not found.is_private
