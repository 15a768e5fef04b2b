"""Logs: structured, and without secrets."""

import json
import logging
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from gatepost.errors import ConfigError
from gatepost.gateway.monitoring import logs
from gatepost.gateway.monitoring.logs import (
    JsonFormatter,
    RepeatFilter,
    TextFormatter,
    clean_line,
    redact_secrets,
)
from gatepost.testing import GatewayProcess
from tests.gateway.tools import client, mail, raw_websocket, websocket

SECRET = "3f9c2b7e51d84a60b1c2d3e4f5a69788"


@pytest.mark.parametrize(
    "text",
    [
        f"Authorization: Bearer {SECRET}",
        f"authorization=bearer {SECRET}",
        f"'authorization': 'Bearer {SECRET}'",
        f"(b'authorization', b'Bearer {SECRET}')",
        f'{{"token": "{SECRET}"}}',
        f"GET /v1/ws?token={SECRET}&x=1",
        f"gp1.public.{SECRET}",
    ],
)
def test_secrets_are_taken_out(text: str) -> None:
    assert SECRET not in redact_secrets(text)
    assert "[redacted]" in redact_secrets(text)


def test_ordinary_text_stays() -> None:
    text = "node vm listens on http://127.0.0.1:7433; 5 tokens counted, bearer of news"
    assert redact_secrets(text) == text


def _record(exception: BaseException | None = None) -> logging.LogRecord:
    info = None if exception is None else (type(exception), exception, exception.__traceback__)
    return logging.LogRecord("x.y", logging.WARNING, "", 1, "token=%s", (SECRET,), info)


def test_a_json_line_has_its_parts() -> None:
    entry = json.loads(JsonFormatter().format(_record(ValueError(f"Bearer {SECRET}"))))
    assert (entry["level"], entry["logger"], entry["message"]) == (
        "warning",
        "x.y",
        "token=[redacted]",
    )
    assert "ValueError" in entry["exception"]
    assert SECRET not in entry["exception"]


def test_a_text_line_is_redacted_too() -> None:
    line = TextFormatter().format(_record(ValueError(f"Bearer {SECRET}")))
    assert "warning token=[redacted]" in line
    assert SECRET not in line


HOSTILE = "peer \n12:00:00 error   forged \x1b[2J\x9b31m \u202eevil\u2028next\r\x00"


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
def test_text_of_others_neither_makes_lines_nor_controls_a_terminal(
    formatter: logging.Formatter,
) -> None:
    record = logging.LogRecord("x", logging.WARNING, "", 1, "refused: %s", (HOSTILE,), None)
    line = formatter.format(record)
    assert line.isprintable()
    message = json.loads(line)["message"] if line.startswith("{") else line
    assert message.isprintable()
    assert "forged" in message, "it is shown, and does no harm"


def test_the_text_of_an_exception_looks_like_no_line_of_the_log() -> None:
    lines = TextFormatter().format(_record(ValueError(HOSTILE))).split("\n")
    assert len(lines) > 2
    assert all(line.startswith("    ") and line.isprintable() for line in lines[1:])
    entry = json.loads(JsonFormatter().format(_record(ValueError(HOSTILE))))
    assert all(line.isprintable() for line in entry["exception"].split("\n"))


def test_a_line_has_a_longest_length() -> None:
    assert len(clean_line("x" * 1_000_000)) < 5000


def test_a_log_file_is_private_and_renewed_before_it_fills_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_MAX_FILE_BYTES", 1000)
    file = tmp_path / "gateway.log"
    handler = logs.PrivateLogFile(file)
    for number in range(1000):
        handler.emit(logging.makeLogRecord({"msg": f"line {number}"}))
    handler.close()
    found = sorted(path.name for path in tmp_path.iterdir())
    assert found == ["gateway.log", "gateway.log.1", "gateway.log.2", "gateway.log.3"]
    assert all(path.stat().st_size <= 1000 for path in tmp_path.iterdir())
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())


def test_a_log_file_that_cannot_be_written_is_explained(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"log\.file: .* cannot be written"):
        logs.configure_logging("info", "json", tmp_path / "missing" / "gateway.log")


def test_a_warning_that_strangers_cause_is_logged_once_a_minute() -> None:
    repeats = RepeatFilter()

    def passes(at: float, *, failed: bool = False) -> bool:
        record = _record(ValueError("x") if failed else None)
        record.created = at
        return bool(repeats.filter(record))

    assert [passes(at) for at in (0.0, 1.0, 59.0, 60.5, 61.0)] == [True, False, False, True, False]
    assert passes(62.0, failed=True), "an unexpected failure is never left out"


@pytest.mark.parametrize("style", ["json", "text"])
def test_the_token_is_in_no_log_even_at_debug(
    start: Callable[..., GatewayProcess], box: str, style: str
) -> None:
    gateway = start(log__level="debug", log__format=style)
    with client(gateway) as http:
        http.post("/v1/enqueue", json=mail("m:1", box))
        http.post("/v1/enqueue", content=b"nonsense")
        httpx.get(f"{gateway.url}/v1/agents", params={"token": gateway.token})
        httpx.get(f"{gateway.url}/v1/agents", headers={"authorization": f"Basic {gateway.token}"})
        httpx.get(f"{gateway.url}/v1/{gateway.token}", headers={"cookie": gateway.token})
    with websocket(gateway) as frames:
        frames.ask("peek", mailbox=box)
        frames.ask("register", agent=gateway.token)
    with raw_websocket(gateway) as connection:
        connection.send(gateway.token)
        connection.socket.close()
    gateway.stop()
    log = gateway.log.read_text()
    assert "listens on" in log
    assert gateway.token not in log
