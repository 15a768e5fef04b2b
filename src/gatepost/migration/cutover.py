"""Phase three: the last import, the proof that it is complete, and the cut-over marker."""

from msgspec import Struct

from gatepost.client import Client
from gatepost.clock import Clock
from gatepost.errors import WrongState
from gatepost.migration import phase
from gatepost.migration.dump import Dump
from gatepost.migration.files import Folder
from gatepost.migration.importing import Plan, take_over
from gatepost.migration.ledger import Ledger
from gatepost.migration.lookup import Lookup
from gatepost.migration.mirror import finish_interrupted
from gatepost.migration.phase import Command, Marker
from gatepost.migration.report import Report
from gatepost.migration.verify import Proof, verify


class CutOver(Struct):
    report: Report
    proof: Proof
    marker: Marker


async def cut_over(
    client: Client,
    lookup: Lookup,
    folder: Folder,
    dump: Dump,
    plan: Plan,
    clock: Clock,
    *,
    leave_rejects: bool = False,
) -> CutOver:
    """Import the remaining items and mark the cut-over; raise with all objections otherwise.

    It may be repeated with a newer dump, for items that old writers added after the cut-over.
    """
    node_id = (await client.status()).node_id
    phase.allowed(phase.load(folder), Command.CUT_OVER, node_id)
    ledger = Ledger(folder.ledger, clock)
    async with ledger.turn():
        await finish_interrupted(client, ledger, folder, None)
    report = await take_over(client, folder, dump, plan, clock)
    proof = await verify(lookup, folder, dump, plan.names, clock)
    if objections := _objections(report, proof, leave_rejects):
        raise WrongState(f"not cut over: {'; '.join(objections)}")
    marker = phase.enter(folder, Command.CUT_OVER, node_id, clock.now(), counts=report.total)
    return CutOver(report, proof, marker)


def _objections(report: Report, proof: Proof, leave_rejects: bool) -> list[str]:
    found = []
    if not report.total.balanced:
        found.append("the counts of the import do not add up")
    if not proof.holds:
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
