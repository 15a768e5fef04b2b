"""Counts deliveries by the terms of the message ledger."""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from gatepost.ledger import Ledger, make_ledger

LEDGER_COLUMNS: Final = ("kind", "state", "outcome", "reason", "forwarded")
"""The columns that are read of a delivery."""
_ENTRY = ("state", "outcome", "reason")


def count_ledger(deliveries: pa.Table) -> Ledger:
    """The ledger of these deliveries; forwarded mail is in the ledger of its first sender."""
    columns = {name: deliveries[name].cast(pa.string()) for name in ("kind", *_ENTRY)}
    # Orphans have no kind: the message itself is not archived.
    is_sent = pc.not_equal(columns.pop("kind"), "reply").fill_null(False)
    is_entry = pc.and_(is_sent, pc.invert(deliveries["forwarded"].fill_null(False)))
    counted = (
        pa.table(columns).filter(is_entry).group_by(list(_ENTRY)).aggregate([([], "count_all")])
    )
    numbers = counted["count_all"].to_pylist()
    keys = [counted[name].to_pylist() for name in _ENTRY]
    return make_ledger(zip(*keys, numbers, strict=True))
