import pytest

from gatepost.client import Reject, Retry
from gatepost.client._agents.failure_reason import failure_reason


def test_a_reason_is_type_and_message_on_one_line() -> None:
    assert failure_reason(ValueError("bad\n  input")) == "ValueError: bad input"


def test_an_error_without_a_message_is_its_type() -> None:
    assert failure_reason(KeyError()) == "KeyError"


@pytest.mark.parametrize("kind", [Reject, Retry])
def test_a_handler_that_fails_on_purpose_chooses_the_words(kind: type[Exception]) -> None:
    assert failure_reason(kind("the disk is full")) == "the disk is full"
    assert failure_reason(kind())


def test_a_reason_is_short() -> None:
    assert len(failure_reason(ValueError("x" * 5000))) == 500


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer s3cr3t",
        "token=s3cr3t",
        'password: "s3cr3t"',
        "api_key=s3cr3t",
        "invite gp1.public.s3cr3t",
        "session gps1.public.s3cr3t",
    ],
)
def test_what_looks_like_a_secret_is_taken_out(text: str) -> None:
    assert "s3cr3t" not in failure_reason(RuntimeError(f"cannot log in with {text} today"))
