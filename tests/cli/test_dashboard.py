"""`gatepost dashboard`: a link that opens a session once."""

import httpx

from tests.cli.conftest import Cli


def test_the_link_opens_one_session(cli: Cli) -> None:
    link = cli.ok("dashboard").splitlines()[0]
    address, _, code = link.partition("#")
    with httpx.Client() as browser:
        assert browser.get(address).status_code == 200
        assert browser.post(address, data={"code": code}).status_code == 303
        root = address.removesuffix("/login")
        assert "operator" in browser.get(root).text
        assert browser.post(address, data={"code": code}).status_code == 401


def test_a_read_only_link_is_said_to_be_one(cli: Cli) -> None:
    made = cli.json("dashboard", "--read-only")
    address, _, code = made["url"].partition("#")
    with httpx.Client() as browser:
        browser.post(address, data={"code": code})
        assert "read-only" in browser.get(address.removesuffix("/login")).text
    assert "dashboard.link" in cli.ok("audit")
