"""Fair shares of a bounded number of places that several sources fill.

A source may take one more place while it holds less than half of those that are still free. So a
source that takes all it can gets a third of the free places and leaves two thirds, the next one
leaves two thirds of these, and so on. The bound needs no knowledge of who will come: a single flood
leaves most places, and ten of them still leave one in sixty.

The last places are kept for the operator, who alone may take them all.
"""

_OPERATOR_PART = 16


def has_share(held: int, free: int) -> bool:
    """Whether a source that holds so many places may take one of the free ones."""
    return 2 * held < free


def operator_places(places: int) -> int:
    """How many of the places are kept for the operator."""
    return places // _OPERATOR_PART
