"""Actions as a person sees them: what will be done, the same as a command, and the form."""

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from gatepost.errors import Forbidden, GatepostError, NotFound
from gatepost.web.actions import ACTIONS, Action, ActionCall, Field, plan_need
from gatepost.web.api_calls import ApiCalls
from gatepost.web.html import Attribute, Child, Markup, is_local_link, join, tag
from gatepost.web.layout import Frame, command_text, panel
from gatepost.wire.operations import Enqueued

Given = Mapping[str, str]
NEED = "need"


class ActionDone(Struct, frozen=True):
    subject: str
    command: str
    text: str


async def confirm_page(
    frame: Frame, calls: ApiCalls, name: str, given: Given
) -> tuple[str, list[Child]]:
    if frame.read_only:
        raise Forbidden("this session is read-only")
    action = None if name == NEED else _find_action(name)
    call = await _plan_to_show(calls, name, action, given)
    back = given.get("back", "/")
    back = back if is_local_link(back) else "/"
    known = {field.name for field in action.fields} if action is not None else set()
    hidden = [(key, value) for key, value in given.items() if key not in known]
    form = tag(
        "form",
        {"method": "post", "action": f"/do/{name}", "class": "confirm"},
        join(tag("input", {"type": "hidden", "name": k, "value": v}) for k, v in hidden),
        tag("input", {"type": "hidden", "name": "form_secret", "value": frame.form_secret}),
        join(_ask(field, given) for field in (action.fields if action is not None else ())),
        tag("p", None, call.text),
        tag("p", {"class": "dim"}, "The same at the command line:"),
        command_text(call.command),
        tag(
            "div",
            {"class": "acts"},
            tag(
                "button",
                {"class": "btn danger" if call.is_danger else "btn prim", "type": "submit"},
                call.title,
            ),
            tag("a", {"class": "btn", "href": back, "data-cancel": True}, "Cancel"),
        ),
    )
    return call.title, [panel("confirm", call.title, form, size="half")]


async def perform_action(calls: ApiCalls, name: str, form: Given) -> ActionDone:
    if name == NEED:
        call = await plan_need(calls, form.get("id", ""))
    else:
        call = _find_action(name).plan(form)
    answer = await calls.change(call.method, call.path, call.body)
    subject = form.get("id") or form.get("mailbox") or form.get("node") or form.get("agent") or ""
    return ActionDone(subject, call.command, f"{call.title}: {_outcome(answer)}")


def _find_action(name: str) -> Action:
    found = ACTIONS.get(name)
    if found is None:
        raise NotFound(f"no action {name[:100]}")
    return found


async def _plan_to_show(
    calls: ApiCalls, name: str, action: Action | None, given: Given
) -> ActionCall:
    if action is None:
        return await plan_need(calls, given.get("id", ""))
    # What the form still asks for is shown as its name.
    missing = {f.name: f.name.upper() for f in action.fields if f.is_required}
    return action.plan({**missing, **{key: value for key, value in given.items() if value}})


def _ask(field: Field, given: Given) -> Markup:
    box: dict[str, Attribute] = {
        "name": field.name,
        "value": given.get(field.name, ""),
        "required": field.is_required,
    }
    return tag("label", None, field.label, tag("input", {**box, "autocomplete": "off"}))


class _Counted(Struct):
    count: int


class _Results(Struct):
    results: list[msgspec.Raw]


def _outcome(answer: bytes) -> str:
    """What an answer of the API says of itself, in a word or two."""
    try:
        return f"{msgspec.json.decode(answer, type=_Counted).count:,} done"
    except msgspec.MsgspecError:
        pass
    try:
        replayed = msgspec.json.decode(answer, type=Enqueued).results
        failed = [each for each in replayed if each.error is not None]
        words = f", {len(failed):,} refused" if failed else ""
        return f"{len(replayed) - len(failed):,} done{words}"
    except (msgspec.MsgspecError, GatepostError):
        pass
    try:
        return f"{len(msgspec.json.decode(answer, type=_Results).results):,} done"
    except msgspec.MsgspecError:
        return "done"
