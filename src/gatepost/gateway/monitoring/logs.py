"""Logging setup: one JSON object or one line of text per record, with secrets redacted."""

import logging
import re
import sys
import time
from typing import Literal

import msgspec

_SECRET_PATTERN = re.compile(
    r"(?i)(bearer\s+|authorization[\"']?\s*[:=]\s*[\"']?|token[\"']?\s*[:=]\s*[\"']?|gp[a-z]?1\.[^.\s]+\.|ticket\.)"
    r"(?!bearer)[A-Za-z0-9._~+/=-]{8,}"
)


def redact_secrets(text: str) -> str:
    return _SECRET_PATTERN.sub(r"\1[redacted]", text)


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "at": int(record.created * 1000),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact_secrets(record.getMessage()),
        }
        if record.exc_info:
            entry["exception"] = redact_secrets(self.formatException(record.exc_info))
        return msgspec.json.encode(entry).decode()


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%H:%M:%S", time.localtime(record.created))
        text = f"{at} {record.levelname.lower():7} {record.getMessage()}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return redact_secrets(text)


def configure_logging(level: str, style: Literal["json", "text"]) -> None:
    """Send all loggers of the process to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for noisy in ("uvicorn.access", "websockets", "httpx"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))
    # Its warnings are about the requests of strangers, who must not fill the disk with them.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
