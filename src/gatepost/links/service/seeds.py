"""Addresses of gateways to dial, with the expected key of each. Joined ones are stored."""

import msgspec
from msgspec import Struct

from gatepost.journal import Tx
from gatepost.journal.facts import find_fact, save_fact

_SEEDS_FACT = "room_seeds"


class Seed(Struct, frozen=True):
    """An address to dial. `fingerprint` is the expected node key; None accepts any room member.

    TLS accepts exactly the keys in `tls_pins`. Without pins it accepts certificates of the
    system's authorities, of `room.tls_ca`, and of `authorities`, a PEM text given to `join`.
    `from_room`: a member, and not the operator, named the address.
    """

    url: str
    fingerprint: str | None = None
    tls_pins: tuple[str, ...] = ()
    authorities: str = ""
    from_room: bool = False


def load_seeds(tx: Tx) -> list[Seed]:
    known = find_fact(tx, _SEEDS_FACT)
    return [] if known is None else msgspec.json.decode(known, type=list[Seed])


def store_seed(tx: Tx, seed: Seed) -> None:
    """Remember a gateway we joined through. It may have moved: only its last address is kept."""
    others = [
        each
        for each in load_seeds(tx)
        if each.url != seed.url and each.fingerprint != seed.fingerprint
    ]
    save_fact(tx, _SEEDS_FACT, msgspec.json.encode([*others, seed]).decode())
