"""How a client finds its gateway, and what it says when it cannot."""

import json
from pathlib import Path

import pytest

from gatepost.client import locator
from gatepost.errors import ConfigError, Unauthorized, Unavailable


def announce(home: Path, url: str = "http://127.0.0.1:7433", token: str = "t0ken") -> Path:
    home.mkdir(parents=True, exist_ok=True)
    endpoint = {"url": url, "socket": None, "pid": 1, "node_id": "n"}
    (home / "endpoint.json").write_text(json.dumps(endpoint))
    (home / "token").write_text(token + "\n")
    return home


def test_the_state_directory_has_address_and_token(tmp_path: Path) -> None:
    target = locator(announce(tmp_path), env={})()
    assert (target.url, target.token) == ("http://127.0.0.1:7433", "t0ken")


def test_gatepost_home_names_the_state_directory(tmp_path: Path) -> None:
    announce(tmp_path / "here")
    target = locator(env={"GATEPOST_HOME": str(tmp_path / "here")})()
    assert target.token == "t0ken"


def test_without_anything_it_is_in_the_home_folder(tmp_path: Path) -> None:
    announce(tmp_path / ".gatepost")
    assert locator(env={"HOME": str(tmp_path)})().url == "http://127.0.0.1:7433"


def test_a_settings_file_may_have_moved_the_state_directory(tmp_path: Path) -> None:
    announce(tmp_path / "elsewhere")
    (tmp_path / "gatepost.toml").write_text(f'[node]\nstate_dir = "{tmp_path}/elsewhere"\n')
    assert locator(env={"GATEPOST_HOME": str(tmp_path)})().token == "t0ken"


def test_environment_may_name_address_and_token_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("other")
    env = {"GATEPOST_URL": "http://box:1/", "GATEPOST_TOKEN_FILE": str(tmp_path / "secret")}
    target = locator(env=env)()
    assert (target.url, target.token) == ("http://box:1", "other")


def test_arguments_win_over_the_environment(tmp_path: Path) -> None:
    env = {"GATEPOST_URL": "http://wrong:1", "GATEPOST_TOKEN_FILE": "/nowhere"}
    assert locator(announce(tmp_path), env=env)().url == "http://127.0.0.1:7433"
    target = locator(url="https://right", token="given", env=env)()
    assert (target.url, target.token) == ("https://right", "given")


def test_a_gateway_that_moved_is_found_again(tmp_path: Path) -> None:
    locate = locator(announce(tmp_path), env={})
    announce(tmp_path, url="http://127.0.0.1:9")
    assert locate().url == "http://127.0.0.1:9"


def test_no_gateway_here_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"no gateway runs here.*gatepost up"):
        locator(tmp_path, env={})()


def test_a_missing_token_is_named(tmp_path: Path) -> None:
    (announce(tmp_path) / "token").unlink()
    with pytest.raises(Unauthorized, match=r"token.*No such file"):
        locator(tmp_path, env={})()


def test_an_empty_token_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(Unauthorized, match="is empty"):
        locator(announce(tmp_path, token=""), env={})()


def test_a_damaged_announcement_is_noticed(tmp_path: Path) -> None:
    (announce(tmp_path) / "endpoint.json").write_text("{")
    with pytest.raises(ConfigError, match="damaged"):
        locator(tmp_path, env={})()


def test_an_address_must_be_one() -> None:
    with pytest.raises(ConfigError, match="http://HOST:PORT"):
        locator(url="localhost:7433", env={})


def test_a_token_is_never_shown(tmp_path: Path) -> None:
    assert "t0ken" not in repr(locator(announce(tmp_path), env={})())
