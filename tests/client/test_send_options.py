"""Every call that sends takes the same options, and refuses one that does not exist."""

import typing

import pytest

from gatepost.client import SendOptions
from gatepost.client._send_options import apply_options
from gatepost.wire.operations import NewSend


def test_options_become_fields_of_the_message() -> None:
    new = NewSend(from_agent="al", to_agent="bo")
    apply_options(new, {"ttl_secs": 5.0, "order": "none", "max_retries": 0, "timeout": 3.0})
    assert (new.ttl_secs, new.order, new.max_retries) == (5.0, "none", 0)
    apply_options(new, {"subject": "change 17"})
    assert new.subject == "change 17"


def test_an_option_that_is_none_is_left_out() -> None:
    new = NewSend(from_agent="al", to_agent="bo")
    apply_options(new, {"corr_id": None, "not_before": None, "payload_file": None})
    assert new == NewSend(from_agent="al", to_agent="bo")


def test_an_option_that_does_not_exist_is_refused() -> None:
    options = typing.cast(SendOptions, {"from_agent": "mallory"})
    with pytest.raises(TypeError, match="no option 'from_agent'"):
        apply_options(NewSend(from_agent="al"), options)


def test_every_option_of_a_message_is_a_field_of_it() -> None:
    fields = set(NewSend.__struct_fields__) | {"timeout", "payload_file"}
    assert SendOptions.__optional_keys__ <= fields
