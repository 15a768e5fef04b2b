from gatepost.mesh.replay_cache import ReplayCache


def take(cache: ReplayCache, sender: str, fingerprint: bytes, now: int) -> bool:
    if not cache.can_take(sender, fingerprint, now):
        return False
    cache.remember(sender, fingerprint, now)
    return True


def test_a_datagram_counts_once_while_its_timestamp_would_still_pass() -> None:
    cache = ReplayCache(window_ms=11_000)
    assert take(cache, "a", b"x", now=0)
    assert not take(cache, "a", b"x", now=10_999)
    assert take(cache, "b", b"x", now=10_999)
    assert take(cache, "a", b"x", now=11_000)


def test_a_sender_has_a_bound_of_its_own() -> None:
    cache = ReplayCache(window_ms=11_000, most=3)
    assert [take(cache, "a", b"%d" % n, 0) for n in range(5)] == [True] * 3 + [False] * 2
    assert take(cache, "b", b"0", 0)
    assert take(cache, "a", b"5", 11_000)


def test_a_datagram_counts_once_it_is_remembered() -> None:
    cache = ReplayCache(window_ms=11_000)
    assert cache.can_take("a", b"x", 0)
    assert cache.can_take("a", b"x", 0)
    cache.remember("a", b"x", 0)
    assert not cache.can_take("a", b"x", 0)
