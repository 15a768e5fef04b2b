"""Incidents, objectives, settings as they are in force, and the audit log."""

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from gatepost.config import Settings
from gatepost.web.api_calls import ApiCalls
from gatepost.web.html import NOTHING, Child, Markup, join, tag
from gatepost.web.layout import (
    PAGES,
    Frame,
    action_link,
    command_text,
    empty,
    heading,
    link,
    logout_form,
    panel,
    table,
)
from gatepost.web.objective_figures import read_objectives
from gatepost.web.words import ago, chip
from gatepost.wire.gateway_views import AuditEntry
from gatepost.wire.report_views import EtaAdviceView, IncidentPage

_PAGE = 200
_SECRET_NAMES = ("secret", "token", "password", "credential", "headers", "header")


async def incidents_page(
    frame: Frame, calls: ApiCalls, given: Mapping[str, str]
) -> tuple[str, list[Child]]:
    wanted = {"class": given["class"]} if given.get("class") else {}
    found = await calls.get("/v1/incidents", IncidentPage, limit=_PAGE, **wanted)
    columns = (("Incident", ""), ("Status", "w-s"), ("Age", "w-a"), ("", "w-act"))
    rows = (
        (
            join(
                [
                    tag("b", None, f"{each.class_.replace('_', ' ')}: {each.subject}"),
                    tag("span", {"class": "why"}, f"{each.detail} · {each.source}"),
                ]
            ),
            chip("wait" if each.status == "open" else "ok", each.status),
            ago(each.raised_at, frame.now),
            action_link(frame, "resolve-incident", "Resolve…", {"id": each.id})
            if each.status == "open"
            else NOTHING,
        )
        for each in found.incidents
    )
    counts = join(
        part
        for name, number in found.counts.items()
        for part in (link(f"/incidents?class={name}", f"{number} {name.replace('_', ' ')}"), " ")
    )
    shown = table("Incidents", columns, rows) if found.incidents else empty("No incidents.")
    return "Incidents", [
        heading("Incidents", counts),
        panel("list", "Newest first", shown, live="messages room"),
    ]


async def objectives_page(frame: Frame, calls: ApiCalls) -> tuple[str, list[Child]]:
    measured, advice, page = await asyncio.gather(
        read_objectives(calls),
        calls.get("/v1/eta-advice", list[EtaAdviceView]),
        calls.get("/v1/incidents", IncidentPage, **{"class": "objective_missed"}),
    )
    rows = (
        tag(
            "li",
            None,
            tag("div", None, tag("div", None, each.name), tag("div", {"class": "dim"}, each.goal)),
            each.drawing(),
            tag("div", {"class": "v"}, each.sign, " ", each.value, tag("small", None, each.note)),
        )
        for each in measured
    )
    since = "this gateway's messages since it started, in buckets"
    return "Objectives", [
        heading("Objectives"),
        panel(
            "measured",
            "As measured here",
            tag("ul", {"class": "slos"}, join(rows)),
            tag("p", {"class": "dim pad"}, since),
            live="ledger",
            size="narrow",
        ),
        panel(
            "found",
            "As the pipeline found them",
            _pipeline_findings(frame, page, advice),
            size="wide",
        ),
    ]


def _pipeline_findings(frame: Frame, page: IncidentPage, advice: list[EtaAdviceView]) -> Markup:
    if not page.incidents and not advice:
        return join(
            [
                empty(
                    "The pipeline has posted nothing to this room yet. It reads the archives of all"
                    " gateways: ",
                    "gatepost pipeline run",
                ),
                tag(
                    "p",
                    {"class": "pad"},
                    "Then post what it found: ",
                    command_text("gatepost pipeline feedback"),
                ),
            ]
        )
    missed = (
        (tag("b", None, each.subject), each.detail, each.status, ago(each.raised_at, frame.now))
        for each in page.incidents
    )
    told = (
        (
            each.capability_id,
            f"{each.p50_secs:,.0f} s",
            f"{each.p95_secs:,.0f} s",
            f"{each.recommended_eta_seconds:,} s",
            str(each.samples),
        )
        for each in advice
    )
    names = ("Capability", "p50", "p95", "Promise", "Samples")
    return join(
        [
            table(
                "Objectives missed",
                (("Objective", ""), ("What", ""), ("Status", "w-s"), ("Age", "w-a")),
                missed,
            )
            if page.incidents
            else empty("No objective was missed."),
            table("Advice on ETAs", [(name, "") for name in names], told) if advice else NOTHING,
        ]
    )


async def settings_page(frame: Frame, settings: Settings) -> tuple[str, list[Child]]:
    panels = []
    for section, values in msgspec.to_builtins(settings, enc_hook=str).items():
        if not isinstance(values, dict):
            continue
        rows = (
            (tag("code", None, f"{section}.{name}"), tag("code", None, shown_value(name, value)))
            for name, value in values.items()
        )
        panels.append(
            panel(
                section,
                section,
                table(section, (("Setting", ""), ("Value", "")), rows),
                size="half",
            )
        )
    return "Settings", [heading("Settings in force", command_text("gatepost init --help")), *panels]


def shown_value(name: str, value: Any) -> str:
    """A setting without what is secret in it."""
    is_secret = any(part in name for part in _SECRET_NAMES)
    if is_secret and value and not isinstance(value, int | float):
        return "(hidden)"
    if isinstance(value, str) and "@" in value and urlsplit(value).password is not None:
        return "(hidden: it has a password)"
    return msgspec.json.encode(value).decode()


async def audit_page(frame: Frame, calls: ApiCalls) -> tuple[str, list[Child]]:
    entries = await calls.get("/v1/audit", list[AuditEntry], limit=_PAGE)
    columns = (("When", "w-a"), ("Actor", ""), ("Action", ""), ("Subject", ""), ("Detail", ""))
    rows = ((ago(e.at, frame.now), e.actor, e.action, e.subject, e.detail) for e in entries)
    shown = table("Audit log", columns, rows) if entries else empty("No manual actions yet.")
    return "Audit log", [
        heading("Audit log"),
        panel("list", "Newest first", shown, live="messages"),
    ]


async def more_page(frame: Frame) -> tuple[str, list[Child]]:
    """The pages that the bar of a phone has no room for."""
    items = join(tag("li", None, link(path, name)) for path, name, _ in PAGES)
    return "More", [heading("More"), tag("ul", {"class": "more-list"}, items), logout_form(frame)]
