"""The user that a session gets: it is not root, whatever its gateway and the settings are."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gatepost.errors import ConfigError, LaunchFailed
from gatepost.tasks.runtimes import session_user
from gatepost.tasks.runtimes.session_user import (
    SessionUser,
    SessionUsers,
    check_session_user,
    find_any_user,
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_user, "is_root", lambda: False)
    assert SessionUsers(tmp_path).find("s1") == SessionUser(os.geteuid(), os.getegid())
    with pytest.raises(ConfigError, match="needs a gateway that runs as root"):
        check_session_user("nobody")


@pytest.mark.parametrize("size", [2**32, 65_536])
def test_open_sessions_of_root_have_users_of_their_own_whatever_their_names_are(
    root: Callable[[int], None], tmp_path: Path, size: int
) -> None:
    root(size)
    users = SessionUsers(tmp_path)
    found = {name: users.find(name) for name in map(str, range(4_336))}
    assert len({user.uid for user in found.values()}) == len(found)
    assert all(user.is_private and user.uid == user.gid for user in found.values())
    assert all(0 < user.uid < size for user in found.values())
    assert all(users.find(name) == user for name, user in found.items())


def test_the_users_of_ended_sessions_are_taken_again_and_no_others(
    root: Callable[[int], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_user, "_RANGES", ((70_000, 3),))
    users = SessionUsers(tmp_path)
    assert {users.find(name).uid for name in "abc"} == {70_000, 70_001, 70_002}
    with pytest.raises(LaunchFailed, match="3 open sessions have all users"):
        users.find("d")
    former = users.find("b")
    users.release("b")
    assert users.find("d") == former


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user")
def test_a_session_that_goes_on_after_a_restart_has_the_user_that_owns_its_folder(
    root: Callable[[int], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_user, "_RANGES", ((70_000, 2),))
    (tmp_path / "old" / "work").mkdir(parents=True)
    os.chown(tmp_path / "old" / "work", 70_001, 70_001)
    users = SessionUsers(tmp_path)
    assert users.find("old") == SessionUser(70_001, 70_001, is_private=True)
    assert users.find("new").uid == 70_000


def test_where_there_is_no_other_user_nothing_is_launched(
    root: Callable[[int], None], tmp_path: Path
) -> None:
    root(1)
    for find in (SessionUsers(tmp_path).find, lambda name: find_any_user()):
        with pytest.raises(LaunchFailed, match="no session runs as root"):
            find("s1")


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("name", ["root", "0", "no such user", "99999999999999999999"])
def test_the_settings_name_a_user_that_exists_and_is_not_root(name: str) -> None:
    for check in (check_session_user, lambda name: SessionUsers(Path(), name).find("s1")):
        with pytest.raises(ConfigError, match=r"hub\.session_user"):
            check(name)


@pytest.mark.usefixtures("root")
def test_all_sessions_have_the_user_that_the_settings_name() -> None:
    users = SessionUsers(Path(), "nobody")
    found = users.find("s1")
    assert found == users.find("s2") == find_any_user("nobody")
    assert found.uid > 0 and not found.is_private
