"""Gradual migration from a legacy shared document that carries payloads to the gateway.

The phases are: import undelivered items, once or as they appear; write to both sides while old
readers remain; cut over.
Every step may be interrupted and repeated: see docs/migration.md.
"""

from gatepost.migration.cutover import CutOverResult, cut_over
from gatepost.migration.import_proof import ImportProof, verify_import
from gatepost.migration.import_summary import ImportCounts, ImportSummary
from gatepost.migration.importer import ImportPlan, import_dump, rehearse_import, survey_dump
from gatepost.migration.legacy_dump import LegacyDump, parse_dump, read_dump
from gatepost.migration.legacy_follower import follow_document
from gatepost.migration.legacy_mirror import LegacyMirror, MirrorDifference, compare_mirror
from gatepost.migration.legacy_records import AgentNames, LegacyItem, RejectedItem
from gatepost.migration.migration_files import MigrationFolder
from gatepost.migration.outcome_client import OutcomeClient
from gatepost.migration.phase_marker import MigrationPhase, PhaseMarker
from gatepost.migration.send_mirror import SendMirror

__all__ = [
    "AgentNames",
    "CutOverResult",
    "ImportCounts",
    "ImportPlan",
    "ImportProof",
    "ImportSummary",
    "LegacyDump",
    "LegacyItem",
    "LegacyMirror",
    "MigrationFolder",
    "MigrationPhase",
    "MirrorDifference",
    "OutcomeClient",
    "PhaseMarker",
    "RejectedItem",
    "SendMirror",
    "compare_mirror",
    "cut_over",
    "follow_document",
    "import_dump",
    "parse_dump",
    "read_dump",
    "rehearse_import",
    "survey_dump",
    "verify_import",
]
