"""The sender's state machine: a table that storage and diagrams are made from."""

from gatepost.delivery.delivery_states import (
    TERMINAL_STATES,
    TRANSITIONS,
    DeliveryInput,
    DeliveryState,
    update_delivery,
)


def test_only_an_amendment_leads_out_of_an_end_and_to_another_one() -> None:
    ways_out = {pair: to for pair, to in TRANSITIONS.items() if pair[0] in TERMINAL_STATES}
    assert {input for _, input in ways_out} == {DeliveryInput.AMEND, DeliveryInput.AMEND_REPLY}
    assert set(ways_out.values()) <= set(TERMINAL_STATES) - {DeliveryState.DEAD_LETTER}


def test_every_state_but_the_ends_can_reach_one() -> None:
    reaching = set(TERMINAL_STATES)
    for _ in DeliveryState:
        reaching |= {source for (source, _), target in TRANSITIONS.items() if target in reaching}
    assert reaching == set(DeliveryState)


def test_accepted_work_is_never_sent_again() -> None:
    again = {DeliveryInput.RETRY, DeliveryInput.REROUTE, DeliveryInput.TIMEOUT}
    for state in (DeliveryState.ACCEPTED, DeliveryState.INCIDENT):
        assert not again & {event for source, event in TRANSITIONS if source is state}


def test_an_update_is_guarded_by_its_source_states() -> None:
    assert update_delivery(DeliveryInput.RETRY, "attempt = ?", returning="node") == (
        "UPDATE delivery SET state = 'emitted', attempt = ? WHERE event_id = ?"
        " AND state IN ('retry_pending') RETURNING node"
    )


def test_each_input_leads_to_one_state() -> None:
    for input in DeliveryInput:
        assert update_delivery(input, "next_at = ?")
