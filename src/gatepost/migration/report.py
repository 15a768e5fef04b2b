"""The report of an import, with counts that must add up."""

from collections import Counter
from collections.abc import Iterable

from msgspec import Struct, field

from gatepost.migration.fields import Item, Kind, Reject


class Counts(Struct):
    """Items of one kind. Every item in `read` is counted in exactly one of the other four."""

    read: int = 0
    imported: int = 0
    already: int = 0
    history: int = 0
    rejected: int = 0

    @property
    def balanced(self) -> bool:
        return self.read == self.imported + self.already + self.history + self.rejected

    def __add__(self, other: "Counts") -> "Counts":
        names = self.__struct_fields__
        return Counts(*(getattr(self, name) + getattr(other, name) for name in names))


class Report(Struct):
    """In a dry run, `imported` counts the items to import. `unmapped` counts ignored fields."""

    dry_run: bool
    messages: Counts = field(default_factory=Counts)
    tasks: Counts = field(default_factory=Counts)
    reasons: dict[str, int] = field(default_factory=dict)
    unmapped: dict[str, int] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    rejects_file: str | None = None
    history_file: str | None = None

    @property
    def total(self) -> Counts:
        return self.messages + self.tasks

    def of(self, kind: Kind) -> Counts:
        return self.messages if kind == "messages" else self.tasks

    def count(self, imported: Iterable[Item], already: Iterable[Item]) -> None:
        for item in imported:
            self.of(item.kind).imported += 1
        for item in already:
            self.of(item.kind).already += 1

    def reject(self, rejects: Iterable[Reject]) -> None:
        reasons = Counter(self.reasons)
        for each in rejects:
            self.of(each.kind).rejected += 1
            reasons[each.code] += 1
        self.reasons = dict(reasons)
