from gatepost.mesh.address_cookie import AddressCookies


def test_a_cookie_proves_one_address_of_one_node_to_one_gateway() -> None:
    cookies = AddressCookies(b"secret")
    cookie = cookies.cookie_for("a", "10.0.0.1:7")
    assert cookies.is_valid(cookie, "a", "10.0.0.1:7")
    assert not cookies.is_valid(cookie, "a", "10.0.0.2:7")
    assert not cookies.is_valid(cookie, "b", "10.0.0.1:7")
    assert not cookies.is_valid("", "a", "10.0.0.1:7")
    assert not AddressCookies(b"another").is_valid(cookie, "a", "10.0.0.1:7")


def test_any_text_may_come_back_as_a_cookie() -> None:
    cookies = AddressCookies(b"secret")
    for echo in ("é", "\ud800", "\0", "0" * 1200):
        assert not cookies.is_valid(echo, "a", "10.0.0.1:7")
