"""The report of an import, with counts that must add up."""

from collections import Counter
from collections.abc import Iterable

from msgspec import Struct, field

from gatepost.migration.legacy_records import LegacyItem, LegacyKind, RejectedItem


class ImportCounts(Struct):
    """Items of one kind. Every item in `read` is counted in exactly one of the other four."""

    read: int = 0
    imported: int = 0
    already: int = 0
    history: int = 0
    rejected: int = 0

    @property
    def is_balanced(self) -> bool:
        return self.read == self.imported + self.already + self.history + self.rejected

    def __add__(self, other: "ImportCounts") -> "ImportCounts":
        names = self.__struct_fields__
        return ImportCounts(*(getattr(self, name) + getattr(other, name) for name in names))


class ImportSummary(Struct):
    """In a dry run, `imported` counts the items to import. `unmapped` counts ignored fields."""

    dry_run: bool
    messages: ImportCounts = field(default_factory=ImportCounts)
    tasks: ImportCounts = field(default_factory=ImportCounts)
    reasons: dict[str, int] = field(default_factory=dict)
    unmapped: dict[str, int] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    rejects_file: str | None = None
    history_file: str | None = None

    @property
    def total(self) -> ImportCounts:
        return self.messages + self.tasks

    def counts_of(self, kind: LegacyKind) -> ImportCounts:
        return self.messages if kind == "messages" else self.tasks

    def count_items(self, imported: Iterable[LegacyItem], already: Iterable[LegacyItem]) -> None:
        for item in imported:
            self.counts_of(item.kind).imported += 1
        for item in already:
            self.counts_of(item.kind).already += 1

    def count_rejects(self, rejects: Iterable[RejectedItem]) -> None:
        reasons = Counter(self.reasons)
        for each in rejects:
            self.counts_of(each.kind).rejected += 1
            reasons[each.code] += 1
        self.reasons = dict(reasons)
