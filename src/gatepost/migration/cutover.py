"""Phase three: the last import, the proof that it is complete, and the cut-over marker."""

from msgspec import Struct

from gatepost.client import Client
from gatepost.clock import Clock
from gatepost.errors import WrongState
from gatepost.migration import phase_marker
from gatepost.migration.import_proof import ImportProof, verify_import
from gatepost.migration.import_summary import ImportSummary
from gatepost.migration.importer import ImportPlan, send_dump
from gatepost.migration.legacy_dump import LegacyDump
from gatepost.migration.legacy_mirror import finish_interrupted_group
from gatepost.migration.migration_files import MigrationFolder
from gatepost.migration.migration_ledger import MigrationLedger
from gatepost.migration.outcome_client import OutcomeClient
from gatepost.migration.phase_marker import MigrationCommand, PhaseMarker


class CutOverResult(Struct):
    report: ImportSummary
    proof: ImportProof
    marker: PhaseMarker


async def cut_over(
    client: Client,
    lookup: OutcomeClient,
    folder: MigrationFolder,
    dump: LegacyDump,
    plan: ImportPlan,
    clock: Clock,
    *,
    leave_rejects: bool = False,
) -> CutOverResult:
    """Import the remaining items and mark the cut-over; raise with all objections otherwise.

    It may be repeated with a newer dump, for items that old writers added after the cut-over.
    """
    node_id = (await client.status()).node_id
    phase_marker.check_transition(
        phase_marker.load_marker(folder), MigrationCommand.CUT_OVER, node_id
    )
    ledger = MigrationLedger(folder.ledger, clock)
    async with ledger.take_turn():
        await finish_interrupted_group(client, ledger, folder, None)
    report = await send_dump(client, folder, dump, plan, clock)
    proof = await verify_import(lookup, folder, dump, plan.names, clock)
    if objections := _find_objections(report, proof, leave_rejects):
        raise WrongState(f"not cut over: {'; '.join(objections)}")
    marker = phase_marker.enter_phase(
        folder, MigrationCommand.CUT_OVER, node_id, clock.now(), counts=report.total
    )
    return CutOverResult(report, proof, marker)


def _find_objections(report: ImportSummary, proof: ImportProof, leave_rejects: bool) -> list[str]:
    found = []
    if not report.total.is_balanced:
        found.append("the counts of the import do not add up")
    if not proof.is_complete:
        found.append(
            f"{len(proof.left)} items are only in the legacy document, {len(proof.missing)} are"
            f" not known to the gateway, {len(proof.doubled)} share a message;"
            " `gatepost migrate verify` names them"
        )
    if proof.rejected and not leave_rejects:
        found.append(
            f"{proof.rejected} items were rejected and would stay behind:"
            f" see {report.rejects_file}, or give them up with --leave-rejects"
        )
    return found
