"""The reasons for which a datagram does not count."""

from enum import StrEnum


class Refusal(StrEnum):
    """The reason why a datagram does not count."""

    OVERSIZED = "oversized"
    MALFORMED = "malformed"
    UNKNOWN_SENDER = "unknown_sender"
    WRONG_RECEIVER = "wrong_receiver"
    CLOCK_SKEW = "clock_skew"
    RATE_LIMITED = "rate_limited"
    BAD_SIGNATURE = "bad_signature"
    REPLAYED = "replayed"
    BAD_PAYLOAD = "bad_payload"
    BAD_HMAC = "bad_hmac"
    NOT_ALLOWED = "not_allowed"
