"""Endpoint and token files, and what is said when they cannot be used."""

from pathlib import Path

import pytest

from gatepost.connect.gateway_endpoint import read_endpoint, read_token
from gatepost.errors import ConfigError, Unauthorized, Unavailable


def test_the_endpoint_of_a_state_directory_is_read(tmp_path: Path) -> None:
    (tmp_path / "endpoint.json").write_text(
        '{"url": "http://127.0.0.1:1", "socket": null, "pid": 7, "node_id": "n"}'
    )
    endpoint = read_endpoint(tmp_path)
    assert (endpoint.url, endpoint.pid, endpoint.tls_cert) == ("http://127.0.0.1:1", 7, None)


def test_a_missing_or_damaged_endpoint_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="gatepost up"):
        read_endpoint(tmp_path)
    (tmp_path / "endpoint.json").write_text("{")
    with pytest.raises(ConfigError, match="restart the gateway"):
        read_endpoint(tmp_path)


def test_a_token_is_read_without_its_newline(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t0ken\n")
    assert read_token(tmp_path / "token", "advice") == "t0ken"


@pytest.mark.parametrize("content", ["", "my secret\nsecond line", "sécret"])
def test_a_file_without_a_token_is_refused_and_not_quoted(tmp_path: Path, content: str) -> None:
    (tmp_path / "odd").write_text(content)
    with pytest.raises(Unauthorized, match="name another file") as refused:
        read_token(tmp_path / "odd", "name another file")
    assert "cret" not in refused.value.message
