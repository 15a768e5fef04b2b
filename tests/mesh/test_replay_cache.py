from gatepost.mesh.replay_cache import ReplayCache


def test_a_datagram_counts_once_while_its_timestamp_would_still_pass() -> None:
    cache = ReplayCache(window_ms=11_000)
    assert cache.add_datagram("a", b"x", now=0)
    assert not cache.add_datagram("a", b"x", now=10_999)
    assert cache.add_datagram("b", b"x", now=10_999)
    assert cache.add_datagram("a", b"x", now=11_000)


def test_a_sender_has_a_bound_of_its_own() -> None:
    cache = ReplayCache(window_ms=11_000, most=3)
    assert [cache.add_datagram("a", b"%d" % n, 0) for n in range(5)] == [True] * 3 + [False] * 2
    assert cache.add_datagram("b", b"0", 0)
    assert cache.add_datagram("a", b"5", 11_000)
