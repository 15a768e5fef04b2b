"""Why a turn failed, in words that may leave this process."""

import re

_LONGEST = 500
_SECRETS = re.compile(
    r"(?i)(bearer\s+|(?:authorization|token|password|secret|api[_-]?key)[\"']?\s*[:=]\s*[\"']?"
    r"|gp1\.[^.\s]+\.)(?!bearer)[^\s\"',;]+"
)


def reason_of(error: BaseException) -> str:
    """The error's type and message, without traceback and without what looks like a secret."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return _SECRETS.sub(r"\1[redacted]", " ".join(text.split()))[:_LONGEST]
