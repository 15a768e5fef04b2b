"""The gateways one joined through, and how each is recognised."""

from gatepost.journal.database import open_memory_journal
from gatepost.journal.transaction import Tx
from gatepost.links.service.seeds import Seed, load_seeds, store_seed

PIN = "ab" * 32


def test_a_seed_is_kept_with_its_key_its_pin_and_its_authority() -> None:
    tx = Tx(open_memory_journal(), 1)
    assert load_seeds(tx) == []
    seed = Seed("https://vps.example:7433", "f" * 32, (PIN,), "-----BEGIN CERTIFICATE-----")
    store_seed(tx, seed)
    assert load_seeds(tx) == [seed]


def test_a_gateway_that_moved_or_has_a_new_key_is_kept_once() -> None:
    tx = Tx(open_memory_journal(), 1)
    other = Seed("https://lab.example:7433", "e" * 32)
    for seed in (Seed("https://old.example:7433", "f" * 32), other):
        store_seed(tx, seed)
    moved = Seed("https://new.example:7433", "f" * 32, (PIN,))
    store_seed(tx, moved)
    assert load_seeds(tx) == [other, moved]
    again = Seed("https://new.example:7433", "f" * 32)
    store_seed(tx, again)
    assert load_seeds(tx) == [other, again]
