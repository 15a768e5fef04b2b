"""Describes why a turn failed, without secrets."""

import re

_MAX_LENGTH = 500
_SECRETS = re.compile(
    r"(?i)(bearer\s+|(?:authorization|token|password|secret|api[_-]?key)[\"']?\s*[:=]\s*[\"']?"
    r"|gp[a-z]?1\.[^.\s]+\.)(?!bearer)[^\s\"',;]+"
)


class Reject(Exception):
    """Raise this in a handler to refuse a message for good: it is not delivered again."""


class Retry(Exception):
    """Raise this in a handler to fail a turn that is to be tried again. Its text is the reason."""


def failure_reason(error: BaseException) -> str:
    """The error's type and message; text that looks like a secret is redacted."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, Reject):
        text = str(error) or "rejected"
    elif isinstance(error, Retry):
        text = str(error) or "not this time"
    return _SECRETS.sub(r"\1[redacted]", " ".join(text.split()))[:_MAX_LENGTH]
