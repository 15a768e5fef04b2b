"""Gradual migration from a legacy shared document that carries payloads to the gateway.

The phases are: import undelivered items, write to both sides while old readers remain, cut over.
Every step may be interrupted and repeated: see docs/migration.md.
"""

from gatepost.migration.cutover import CutOver, cut_over
from gatepost.migration.dump import Dump, parse, read
from gatepost.migration.fields import Item, Names, Reject
from gatepost.migration.files import Folder
from gatepost.migration.importing import Plan, import_dump, survey
from gatepost.migration.lookup import Lookup
from gatepost.migration.mirror import Difference, LegacyMirror, compare
from gatepost.migration.phase import Marker, Phase
from gatepost.migration.report import Counts, Report
from gatepost.migration.verify import Proof, verify

__all__ = [
    "Counts",
    "CutOver",
    "Difference",
    "Dump",
    "Folder",
    "Item",
    "LegacyMirror",
    "Lookup",
    "Marker",
    "Names",
    "Phase",
    "Plan",
    "Proof",
    "Reject",
    "Report",
    "compare",
    "cut_over",
    "import_dump",
    "parse",
    "read",
    "survey",
    "verify",
]
