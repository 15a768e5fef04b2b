"""The states of an event in its receiver's inbox, and the only transitions between them.

An event that comes for the first time is `unseen`: it has no row yet. It is `held` while it cannot
be accepted yet, `offered` while its sender has yet to confirm it, `accepted` once it is mail for
good, and `refused` if it cannot be accepted at all. A held or offered event that its sender takes
back, gives up or never decides about is `withdrawn`; so is an offer whose sender has begun a new
incarnation and forgot it (`lapse`). In a restored journal held and offered events are `restored`:
their sender has to decide about them.

`accepted` and `restored` are final: an event in one of these that comes again is only answered, and
so is one that is held or offered. A `refused` or `withdrawn` event that comes again is taken as if
it were unseen, for its sender may have routed it here anew.
"""

from enum import StrEnum


class InboxState(StrEnum):
    UNSEEN = "unseen"
    HELD = "held"
    OFFERED = "offered"
    ACCEPTED = "accepted"
    REFUSED = "refused"
    WITHDRAWN = "withdrawn"
    RESTORED = "restored"


class InboxInput(StrEnum):
    HOLD = "hold"
    OFFER = "offer"
    ACCEPT = "accept"
    CONFIRM = "confirm"
    REFUSE = "refuse"
    WITHDRAW = "withdraw"
    GIVE_UP = "give_up"
    EXPIRE = "expire"
    LAPSE = "lapse"
    RESTORE = "restore"


_S, _I = InboxState, InboxInput

TRANSITIONS: dict[tuple[InboxState, InboxInput], InboxState] = {
    (_S.UNSEEN, _I.HOLD): _S.HELD,
    (_S.UNSEEN, _I.OFFER): _S.OFFERED,
    (_S.UNSEEN, _I.ACCEPT): _S.ACCEPTED,
    (_S.UNSEEN, _I.REFUSE): _S.REFUSED,
    (_S.HELD, _I.OFFER): _S.OFFERED,
    (_S.HELD, _I.ACCEPT): _S.ACCEPTED,
    (_S.HELD, _I.REFUSE): _S.REFUSED,
    (_S.HELD, _I.WITHDRAW): _S.WITHDRAWN,
    (_S.HELD, _I.GIVE_UP): _S.WITHDRAWN,
    (_S.HELD, _I.EXPIRE): _S.WITHDRAWN,
    (_S.HELD, _I.LAPSE): _S.WITHDRAWN,
    (_S.HELD, _I.RESTORE): _S.RESTORED,
    (_S.OFFERED, _I.CONFIRM): _S.ACCEPTED,
    # A confirmed offer that cannot be opened, or whose id another message has.
    (_S.OFFERED, _I.REFUSE): _S.REFUSED,
    (_S.OFFERED, _I.WITHDRAW): _S.WITHDRAWN,
    (_S.OFFERED, _I.GIVE_UP): _S.WITHDRAWN,
    (_S.OFFERED, _I.EXPIRE): _S.WITHDRAWN,
    (_S.OFFERED, _I.LAPSE): _S.WITHDRAWN,
    (_S.OFFERED, _I.RESTORE): _S.RESTORED,
    (_S.REFUSED, _I.HOLD): _S.HELD,
    (_S.REFUSED, _I.OFFER): _S.OFFERED,
    (_S.REFUSED, _I.ACCEPT): _S.ACCEPTED,
    (_S.REFUSED, _I.REFUSE): _S.REFUSED,
    (_S.REFUSED, _I.WITHDRAW): _S.WITHDRAWN,
    (_S.REFUSED, _I.GIVE_UP): _S.WITHDRAWN,
    (_S.WITHDRAWN, _I.HOLD): _S.HELD,
    (_S.WITHDRAWN, _I.OFFER): _S.OFFERED,
    (_S.WITHDRAWN, _I.ACCEPT): _S.ACCEPTED,
    (_S.WITHDRAWN, _I.REFUSE): _S.REFUSED,
    (_S.WITHDRAWN, _I.WITHDRAW): _S.WITHDRAWN,
    (_S.WITHDRAWN, _I.GIVE_UP): _S.WITHDRAWN,
}

FINAL = (InboxState.ACCEPTED, InboxState.RESTORED)
# Taken, but neither accepted for good nor refused.
UNDECIDED = (InboxState.HELD, InboxState.OFFERED)


def is_taken_anew(state: InboxState) -> bool:
    """Whether an event in this state that comes (again) is taken; otherwise it is only answered."""
    return (state, InboxInput.HOLD) in TRANSITIONS


def transition_sql(input: InboxInput) -> tuple[str, str]:
    """The table's rows for one input as SQL: the target state, and the list of source states.

    Every statement that changes an inbox state is built from this, so storage knows no other moves.
    """
    sources = [source for (source, taken) in TRANSITIONS if taken is input]
    (target,) = {TRANSITIONS[source, input] for source in sources}
    return f"'{target}'", ", ".join(f"'{source}'" for source in sources)
