"""`gatepost incidents`, `reviews` and `eta`: incidents, misfires to review, and ETA advice."""

import time
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from gatepost.cli import output
from gatepost.cli.gateway_api import quote_segment
from gatepost.cli.options import DEFAULT_OPTIONS, Flag, GatewayOptions, YesOption
from gatepost.cli.problems import ExitCode, usage_problem
from gatepost.durations import format_duration
from gatepost.wire.operations import Count
from gatepost.wire.report_views import (
    EtaAdviceView,
    IncidentDecision,
    IncidentPage,
    IncidentSweep,
    IncidentView,
    ReviewDecision,
    ReviewView,
)

LimitOption = Annotated[
    int, Parameter(validator=Number(gte=1, lte=1000), help="Maximum number of entries.")
]
NoteOption = Annotated[str, Parameter(help="A note that is kept with the review.")]


def list_incidents(
    *,
    since: Annotated[float | None, Parameter(validator=Number(gte=0))] = None,
    class_: Annotated[
        str | None, Parameter(name="--class", help="Only incidents of this class.")
    ] = None,
    limit: LimitOption = 100,
    resolve: str | None = None,
    resolve_all: Flag = False,
    older: Annotated[float | None, Parameter(validator=Number(gte=0))] = None,
    note: Annotated[str, Parameter(help="When resolving: a note for the audit log.")] = "",
    yes: YesOption = False,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> int:
    """List incidents, newest first, or resolve some.

    The pipeline says when an incident that it found was over.

    For example:

      gatepost incidents
      gatepost incidents --since 3600 --class dead_letter
      gatepost incidents --resolve pipeline:silent_node:bob --note "back again"
      gatepost incidents --resolve-all --class link_error --older 86400

    Parameters
    ----------
    since
        Only incidents of the last SINCE seconds.
    resolve
        The id of an incident that was dealt with, here or on another gateway of the room.
    resolve_all
        Resolve all open incidents, or those that --class and --older choose.
    older
        With --resolve-all: only incidents raised more than OLDER seconds ago.
    """
    if older is not None and not resolve_all:
        raise usage_problem("--older goes with --resolve-all")
    if resolve is not None:
        _resolve_incident(resolve, note, options)
        return ExitCode.OK
    if resolve_all:
        return _resolve_incidents(class_, older, note, yes, options)
    start = None if since is None else int((time.time() - since) * 1000)
    wanted: dict[str, object] = {"since": start, "class": class_, "limit": limit}
    with options.find_gateway() as gateway:
        found = gateway.get("/v1/incidents", IncidentPage, 0.0, **wanted)
    output.print_result(options, found, lambda: _print_incidents(found))
    return ExitCode.OK


def _resolve_incidents(
    class_: str | None, older: float | None, note: str, yes: bool, options: GatewayOptions
) -> int:
    chosen = f"open incidents of class {class_}" if class_ else "open incidents"
    if older is not None:
        chosen += f" raised more than {format_duration(older)} ago"
    if not output.confirm_action(f"Resolve all {chosen}?", yes, options):
        return ExitCode.FAILED
    before = None if older is None else int((time.time() - older) * 1000)
    with options.find_gateway() as gateway:
        done = gateway.post(
            "/v1/incidents/resolve-all", IncidentSweep(class_, before, note), Count, wait=60
        )
    text = f"{output.format_count(done.count, 'incident')} resolved"
    output.print_result(options, done, lambda: output.print_line(text))
    return ExitCode.OK


def _resolve_incident(id: str, note: str, options: GatewayOptions) -> None:
    with options.find_gateway() as gateway:
        found = gateway.post("/v1/incidents/resolve", IncidentDecision(id, note), IncidentView)
    output.print_result(options, found, lambda: output.print_line(f"{found.id} {found.status}"))


def _print_incidents(found: IncidentPage) -> None:
    if not found.incidents:
        output.print_line("no matching incidents")
        return
    output.print_table(
        ("When", "Class", "Subject", "Detail", "Count", "Seen by", "Status", "Id"),
        [
            (
                output.format_time(i.raised_at),
                i.class_,
                i.subject,
                i.detail,
                "" if i.count is None else i.count,
                i.source,
                _status_text(i),
                i.id,
            )
            for i in found.incidents
        ],
    )
    counts = ", ".join(f"{count} {name}" for name, count in found.counts.items())
    output.print_hint(f"Open, and not over: {counts or 'none'}")


def _status_text(incident: IncidentView) -> str:
    if incident.status != "open" or incident.ended_at is None:
        return incident.status
    return f"over since {output.format_time(incident.ended_at)}"


def list_reviews(
    *,
    status: Literal["open", "resolved", "dismissed", "all"] = "open",
    limit: LimitOption = 100,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> None:
    """List reviews of misfires, newest first.

    For example:

      gatepost reviews list
      gatepost reviews list --status all

    Parameters
    ----------
    status
        Only reviews with this status.
    """
    wanted = None if status == "all" else status
    with options.find_gateway() as gateway:
        found = gateway.get("/v1/reviews", list[ReviewView], status=wanted, limit=limit)
    output.print_result(options, found, lambda: _print_reviews(found))


def _print_reviews(found: list[ReviewView]) -> None:
    if not found:
        output.print_line("no matching reviews")
        return
    columns = ("Review", "Capability", "Versions", "Class", "Count", "Raised", "Status", "Example")
    output.print_table(columns, [_review_row(review) for review in found])


def _review_row(review: ReviewView) -> tuple[object, ...]:
    versions = f"{review.delegation_skill_version} / {review.executor_skill_version}"
    head = (review.id, review.capability_id, versions, review.failure_class, review.count)
    status = f"{review.status} ({review.note})" if review.note else review.status
    return (*head, output.format_time(review.raised_at), status, next(iter(review.corr_ids), ""))


def resolve_review(
    id: str, /, *, note: NoteOption = "", options: GatewayOptions = DEFAULT_OPTIONS
) -> None:
    """Mark a review as resolved.

    For example:

      gatepost reviews resolve ID --note "promises 90 s now"

    Parameters
    ----------
    id
        The id of the review; `gatepost reviews list` shows all.
    """
    _close_review(id, "resolve", note, options)


def dismiss_review(
    id: str, /, *, note: NoteOption = "", options: GatewayOptions = DEFAULT_OPTIONS
) -> None:
    """Mark a review as needing no action.

    For example:

      gatepost reviews dismiss ID --note "a planned outage"

    Parameters
    ----------
    id
        The id of the review; `gatepost reviews list` shows all.
    """
    _close_review(id, "dismiss", note, options)


def _close_review(id: str, verb: str, note: str, options: GatewayOptions) -> None:
    with options.find_gateway() as gateway:
        review = gateway.post(
            f"/v1/reviews/{quote_segment(id)}/{verb}", ReviewDecision(note), ReviewView
        )
    output.print_result(options, review, lambda: output.print_line(f"{review.id} {review.status}"))


def show_eta_advice(*, options: GatewayOptions = DEFAULT_OPTIONS) -> None:
    """Show how long the tasks of each capability take, and the ETA it should promise.

    For example:

      gatepost eta
    """
    with options.find_gateway() as gateway:
        found = gateway.get("/v1/eta-advice", list[EtaAdviceView])
    output.print_result(options, found, lambda: _print_eta_advice(found))


def _print_eta_advice(found: list[EtaAdviceView]) -> None:
    if not found:
        output.print_line("no advice yet: the pipeline posts it with `gatepost pipeline feedback`")
        return
    output.print_table(
        ("Capability", "Median", "95 %", "Promise", "Tasks", "As of"),
        [
            (
                each.capability_id,
                format_duration(each.p50_secs),
                format_duration(each.p95_secs),
                format_duration(each.recommended_eta_seconds),
                each.samples,
                output.format_time(each.at),
            )
            for each in found
        ],
    )
