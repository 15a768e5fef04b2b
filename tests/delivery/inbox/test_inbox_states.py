"""The inbox's state machine: a table from which its SQL is made."""

from gatepost.delivery.inbox.inbox_states import (
    FINAL,
    TRANSITIONS,
    InboxInput,
    InboxState,
    is_taken_anew,
    transition_sql,
)


def test_nothing_leads_out_of_a_final_state() -> None:
    assert not [pair for pair in TRANSITIONS if pair[0] in FINAL]


def test_nothing_leads_back_to_unseen() -> None:
    assert InboxState.UNSEEN not in TRANSITIONS.values()


def test_every_state_can_become_accepted_unless_it_is_final() -> None:
    reaching = {InboxState.ACCEPTED}
    for _ in InboxState:
        reaching |= {source for (source, _), target in TRANSITIONS.items() if target in reaching}
    assert reaching == set(InboxState) - {InboxState.RESTORED}


def test_an_offer_becomes_mail_only_by_its_confirmation() -> None:
    ways = [input for (state, input), target in TRANSITIONS.items()
            if state is InboxState.OFFERED and target is InboxState.ACCEPTED]  # fmt: skip
    assert ways == [InboxInput.CONFIRM]


def test_only_an_event_that_was_not_kept_is_taken_when_it_comes_again() -> None:
    taken = {state for state in InboxState if is_taken_anew(state)}
    assert taken == {InboxState.UNSEEN, InboxState.REFUSED, InboxState.WITHDRAWN}


def test_each_input_leads_to_one_state() -> None:
    assert transition_sql(InboxInput.RESTORE) == ("'restored'", "'held', 'offered'")
    assert all(transition_sql(input) for input in InboxInput)
