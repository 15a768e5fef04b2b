"""What `/` filters by: plain words, and `name:value` for what the gateway can look for itself."""

from collections.abc import Iterable, Mapping

from msgspec import Struct


class RowFilter(Struct, frozen=True):
    text: str = ""

    def named(self, names: Iterable[str]) -> dict[str, str]:
        """The values that are given for some names."""
        pairs = (word.partition(":") for word in self.text.split())
        return {name: value for name, colon, value in pairs if colon and value and name in names}

    def is_match(self, cells: Iterable[str], names: Mapping[str, object]) -> bool:
        """Whether all plain words are in the cells; `names` are looked for elsewhere."""
        shown = " ".join(cells).casefold()
        words = (w for w in self.text.split() if w.partition(":")[0] not in names or ":" not in w)
        return all(word.casefold() in shown for word in words)
