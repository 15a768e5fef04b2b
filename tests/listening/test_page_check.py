"""Requests of web pages: whose name and whose origin they are checked for."""

from pathlib import Path
from typing import Any, cast

import pytest
from litestar.connection import ASGIConnection

from gatepost.errors import Forbidden
from gatepost.listening.page_check import check_page
from tests.gateway.tools import settings


def check(tmp_path: Path, **headers: str) -> None:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "headers": raw, "path": "/", "query_string": b""}
    known = settings(
        tmp_path,
        room__public_url="https://vps.example",
        room__allowed_origins="https://page.example",
    )
    connection: ASGIConnection[Any, Any, Any, Any] = ASGIConnection(cast(Any, scope))
    check_page(connection, known)


@pytest.mark.parametrize("host", ["localhost:7433", "127.0.0.1:1", "[::1]:1", "vps.example"])
def test_own_names_and_addresses_are_served(tmp_path: Path, host: str) -> None:
    check(tmp_path, host=host)
    check(tmp_path, host=host, origin=f"https://{host}")
    check(tmp_path, host=host, origin="https://page.example")


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "", "[::1"])
def test_other_names_are_refused(tmp_path: Path, host: str) -> None:
    with pytest.raises(Forbidden):
        check(tmp_path, host=host)


@pytest.mark.parametrize("origin", ["null", "https://evil.example", "http://localhost:2", "x", ""])
def test_pages_of_other_origins_are_refused(tmp_path: Path, origin: str) -> None:
    with pytest.raises(Forbidden):
        check(tmp_path, host="localhost:1", origin=origin)
