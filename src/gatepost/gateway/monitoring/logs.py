"""Logging setup: one JSON object or one line of text per record, with secrets redacted."""

import logging
import os
import re
import sys
import time
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Literal

import msgspec

from gatepost.errors import ConfigError

_SECRET_PATTERN = re.compile(
    r"(?i)(bearer\s+|authorization[\"']?\s*[:=]\s*[\"']?|token[\"']?\s*[:=]\s*[\"']?|gp[a-z]?1\.[^.\s]+\.|ticket\.|/\.rb/)"
    r"(?!bearer)[A-Za-z0-9._~+/=-]{8,}"
)


# Longer lines are cut, because parts of them may come from others.
_MAX_CHARS = 4000
_REPEAT_SECS = 60.0
_MAX_TEXTS = 256
_MAX_FILE_BYTES = 10_000_000
_OLD_FILES = 3


def redact_secrets(text: str) -> str:
    return _SECRET_PATTERN.sub(r"\1[redacted]", text)


def clean_line(text: str) -> str:
    """Return one line without secrets, in which nothing can act upon a terminal or fake a line.

    Line breaks, escapes and characters that reverse the direction of text become visible.
    """
    text = redact_secrets(text)
    if len(text) > _MAX_CHARS:
        text = f"{text[:_MAX_CHARS]}…"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escape_char(c) for c in text)


def _escape_char(char: str) -> str:
    return char.encode("unicode_escape").decode()


class RepeatFilter(logging.Filter):
    """Passes each message without a traceback once a minute; strangers may cause many."""

    def __init__(self) -> None:
        super().__init__()
        self._passed_at: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info:
            return True
        # The text before its arguments are filled in: there are usually few.
        text = str(record.msg)[:200]
        before = self._passed_at.get(text)
        if before is not None and 0 <= record.created - before < _REPEAT_SECS:
            return False
        if len(self._passed_at) >= _MAX_TEXTS:
            self._passed_at.clear()
        self._passed_at[text] = record.created
        return True


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "at": int(record.created * 1000),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": clean_line(record.getMessage()),
        }
        if record.exc_info:
            lines = self.formatException(record.exc_info).splitlines()
            entry["exception"] = "\n".join(map(clean_line, lines))
        return msgspec.json.encode(entry).decode()


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%H:%M:%S", time.localtime(record.created))
        text = f"{at} {record.levelname.lower():7} {clean_line(record.getMessage())}"
        if record.exc_info:
            # Indented: the text of an exception must not look like a line of the log.
            for line in self.formatException(record.exc_info).splitlines():
                text += f"\n    {clean_line(line)}"
        return text


class PrivateLogFile(RotatingFileHandler):
    """A log file that only its owner can read, renewed before it fills the disk."""

    def __init__(self, file: Path) -> None:
        super().__init__(file, maxBytes=_MAX_FILE_BYTES, backupCount=_OLD_FILES, encoding="utf-8")

    def _open(self) -> TextIOWrapper:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        return os.fdopen(os.open(self.baseFilename, flags, 0o600), "a", encoding="utf-8")


def configure_logging(level: str, style: Literal["json", "text"], file: Path | None) -> None:
    """Send all loggers of the process to the file, or without one to standard error."""
    try:
        handler = logging.StreamHandler(sys.stderr) if file is None else PrivateLogFile(file)
    except OSError as error:
        raise ConfigError(f"log.file: {file} cannot be written: {error.strerror}") from None
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # An invalid request of a stranger is a warning of uvicorn each time.
    logging.getLogger("uvicorn.error").addFilter(RepeatFilter())
    for noisy in ("uvicorn.access", "websockets", "httpx", "httpcore"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))
    # Its warnings are about the requests of strangers, who must not fill the disk with them.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
