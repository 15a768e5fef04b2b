"""`gatepost incidents`, `reviews` and `eta`: incidents, misfires to review, and ETA advice."""

import time
from datetime import datetime
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from gatepost.cli import output
from gatepost.cli.connect import segment
from gatepost.cli.options import OPTIONS, Options
from gatepost.gateway.api.report_views import (
    EtaAdviceView,
    IncidentPage,
    ReviewDecision,
    ReviewView,
)

Limit = Annotated[
    int, Parameter(validator=Number(gte=1, lte=1000), help="Maximum number of entries.")
]
Note = Annotated[str, Parameter(help="A note that is kept with the review.")]


def incidents(
    *,
    since: Annotated[float | None, Parameter(validator=Number(gte=0))] = None,
    class_: Annotated[
        str | None, Parameter(name="--class", help="Only incidents of this class.")
    ] = None,
    limit: Limit = 100,
    options: Options = OPTIONS,
) -> None:
    """List incidents, newest first.

    Parameters
    ----------
    since
        Only incidents of the last SINCE seconds.
    """
    start = None if since is None else int((time.time() - since) * 1000)
    wanted: dict[str, object] = {"since": start, "class": class_, "limit": limit}
    with options.gateway() as gateway:
        found = gateway.get("/v1/incidents", IncidentPage, 0.0, **wanted)
    output.show(options, found, lambda: _list(found))


def _list(found: IncidentPage) -> None:
    if not found.incidents:
        output.say("no matching incidents")
        return
    output.table(
        ("When", "Class", "Subject", "Detail", "Seen by"),
        [(_when(i.raised_at), i.class_, i.subject, i.detail, i.source) for i in found.incidents],
    )
    counts = ", ".join(f"{count} {name}" for name, count in found.counts.items())
    output.hint(f"In all: {counts}")


def reviews(
    *,
    status: Literal["open", "resolved", "dismissed", "all"] = "open",
    limit: Limit = 100,
    options: Options = OPTIONS,
) -> None:
    """List reviews of misfires, newest first.

    Parameters
    ----------
    status
        Only reviews with this status.
    """
    wanted = None if status == "all" else status
    with options.gateway() as gateway:
        found = gateway.get("/v1/reviews", list[ReviewView], status=wanted, limit=limit)
    output.show(options, found, lambda: _list_reviews(found))


def _list_reviews(found: list[ReviewView]) -> None:
    if not found:
        output.say("no matching reviews")
        return
    columns = ("Review", "Capability", "Versions", "Class", "Count", "Raised", "Status", "Example")
    output.table(columns, [_row(review) for review in found])


def _row(review: ReviewView) -> tuple[object, ...]:
    versions = f"{review.delegation_skill_version} / {review.executor_skill_version}"
    head = (review.id, review.capability_id, versions, review.failure_class, review.count)
    status = f"{review.status} ({review.note})" if review.note else review.status
    return (*head, _when(review.raised_at), status, next(iter(review.corr_ids), ""))


def resolve(id: str, /, *, note: Note = "", options: Options = OPTIONS) -> None:
    """Mark a review as resolved.

    Parameters
    ----------
    id
        The id of the review; `gatepost reviews list` shows all.
    """
    _settle(id, "resolve", note, options)


def dismiss(id: str, /, *, note: Note = "", options: Options = OPTIONS) -> None:
    """Mark a review as needing no action.

    Parameters
    ----------
    id
        The id of the review; `gatepost reviews list` shows all.
    """
    _settle(id, "dismiss", note, options)


def _settle(id: str, verb: str, note: str, options: Options) -> None:
    with options.gateway() as gateway:
        review = gateway.post(f"/v1/reviews/{segment(id)}/{verb}", ReviewDecision(note), ReviewView)
    output.show(options, review, lambda: output.say(f"{review.id} {review.status}"))


def eta(*, options: Options = OPTIONS) -> None:
    """Show how long the tasks of each capability take, and the ETA it should promise."""
    with options.gateway() as gateway:
        found = gateway.get("/v1/eta-advice", list[EtaAdviceView])
    output.show(options, found, lambda: _list_advice(found))


def _list_advice(found: list[EtaAdviceView]) -> None:
    if not found:
        output.say("no advice yet: the pipeline posts it with `gatepost pipeline feedback`")
        return
    output.table(
        ("Capability", "Median", "95 %", "Promise", "Tasks", "As of"),
        [
            (
                each.capability_id,
                output.duration(each.p50_secs),
                output.duration(each.p95_secs),
                output.duration(each.recommended_eta_seconds),
                each.samples,
                _when(each.at),
            )
            for each in found
        ],
    )


def _when(millis: int) -> str:
    return datetime.fromtimestamp(millis / 1000).strftime("%Y-%m-%d %H:%M:%S")
