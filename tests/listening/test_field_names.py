"""Names in either spelling, through every decoder of a client's JSON."""

from typing import Any

import msgspec
import pytest
from msgspec import Struct

from gatepost.errors import InvalidRequest
from gatepost.gateway.api.frame_channel import read_frame
from gatepost.listening.field_names import rename_fields, spell_camel, spell_snake
from gatepost.listening.json_input import decode_json
from gatepost.wire.operations import Ack, Dequeue, Enqueue, Nack, NewSend, Send


def frame(op: str, **fields: Any) -> Any:
    return read_frame(msgspec.json.encode({"op": op, **fields}))


@pytest.mark.parametrize(
    ("snake", "camel"), [("wait_secs", "waitSecs"), ("a", "a"), ("x_y_z", "xYZ")]
)
def test_spellings(snake: str, camel: str) -> None:
    assert (spell_camel(snake), spell_snake(camel)) == (camel, snake)


def test_an_operation_is_read_in_either_spelling() -> None:
    snake = frame("dequeue", mailbox="bob", wait_secs=2, limit=3)
    camel = frame("dequeue", mailbox="bob", waitSecs=2, limit=3)
    assert snake == camel == Dequeue(mailbox="bob", wait_secs=2.0, limit=3)
    assert frame("ack", mailbox="bob", msgIds=["m"]) == Ack(mailbox="bob", msg_ids=["m"])
    assert frame("nack", mailbox="bob", receipts=["1.2"], retry=False) == Nack(
        mailbox="bob", receipts=["1.2"], retry=False
    )


def test_messages_inside_an_operation_are_read_in_either_spelling() -> None:
    message = {"msgId": "m", "from": "a", "to": "b", "payload": 1, "ttl_secs": 5, "notBefore": 9.5}
    found = frame("enqueue", messages=[message])
    assert isinstance(found, Enqueue)
    assert (found.messages[0].msg_id, found.messages[0].ttl_secs) == ("m", 5.0)
    assert found.messages[0].not_before == 9.5
    sent = frame("send", messages=[{"fromAgent": "a", "toAgents": ["b"], "payload": 1}])
    assert isinstance(sent, Send)
    assert sent.messages[0].to_agents == ["b"]


def test_what_is_inside_a_payload_keeps_its_names() -> None:
    payload = b'{"msgId":1,"some_name":{"otherName":2}}'
    text = b'{"op":"send","messages":[{"fromAgent":"a","toAgent":"b","payload":' + payload + b"}]}"
    found = read_frame(text)
    assert isinstance(found, Send)
    assert bytes(found.messages[0].payload) == payload  # type: ignore[arg-type]
    ack = read_frame(b'{"op":"ack","mailbox":"b","msgIds":["m"],"replies":{"1.a":{"msgId":1}}}')
    assert isinstance(ack, Ack)
    assert bytes(ack.replies["1.a"]) == b'{"msgId":1}'


def test_a_batch_of_operations_is_read_in_either_spelling() -> None:
    found = read_frame(
        b' [{"op":"dequeue","mailbox":"b","waitSecs":1},{"op":"peek","mailbox":"b"}]'
    )
    assert isinstance(found, list)
    assert found[0] == Dequeue(mailbox="b", wait_secs=1.0)


@pytest.mark.parametrize(
    ("op", "fields", "name"),
    [
        ("dequeue", {"mailbox": "b", "wait": 3}, "wait"),
        ("ack", {"mailbox": "b", "receipts": [], "reciepts": []}, "reciepts"),
        (
            "send",
            {"messages": [{"from_agent": "a", "to_agent": "b", "payload": 1, "ttl": 1}]},
            "ttl",
        ),
        ("register", {"agent": "b", "standBy": True}, "standBy"),
    ],
)
def test_an_unknown_field_of_an_operation_is_named(
    op: str, fields: dict[str, Any], name: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"unknown field `{name}`"):
        frame(op, **fields)


def test_an_unknown_field_of_a_message_is_ignored_as_the_protocol_demands() -> None:
    message = {"msg_id": "m", "from": "a", "to": "b", "payload": 1, "colour": "red"}
    found = frame("enqueue", messages=[message])
    assert isinstance(found, Enqueue)
    assert found.messages[0].msg_id == "m"


def test_a_field_in_both_spellings_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="`wait_secs` is given twice"):
        frame("dequeue", mailbox="b", wait_secs=1, waitSecs=2)


def test_structs_with_camel_names_take_snake_names_too() -> None:
    class Nested(Struct, rename="camel", forbid_unknown_fields=True):
        node_id: str

    class Outer(Struct, rename="camel", forbid_unknown_fields=True):
        first_node: Nested | None = None

    decoder = msgspec.json.Decoder(Outer)
    assert decode_json(decoder, b'{"first_node":{"node_id":"n"}}') == Outer(Nested("n"))


@pytest.mark.parametrize("text", [b"null", b"3", b'"x"', b"[1]", b'{"op":3}', b'{"op":"nope"}'])
def test_anything_else_is_left_to_the_decoder(text: bytes) -> None:
    with pytest.raises(InvalidRequest, match="bad frame"):
        read_frame(text)


def test_a_type_without_names_has_nothing_to_rename() -> None:
    assert rename_fields(list[int], b"[1]") is None
    assert rename_fields(NewSend, b"[1]") == b"[1]"
