"""A gateway without the extra works, and says what to install."""

from collections.abc import Mapping
from pathlib import Path
from typing import IO

import httpx
import pytest

from gatepost.testing import GatewayProcess
from gatepost.testing.gateway import StartedProcess, launch_gateway

# As if the package were not there.
_PROGRAM = (
    "-c",
    "import sys; sys.modules['a2a'] = None; from gatepost.gateway.__main__ import main;"
    " main(sys.argv[1:])",
)


def test_both_directions_name_the_line_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launch(arguments: list[str], env: Mapping[str, str], log: IO[bytes]) -> StartedProcess:
        return launch_gateway(arguments, env, log, _PROGRAM)

    monkeypatch.setattr(GatewayProcess, "launch", staticmethod(launch))
    with GatewayProcess(tmp_path / "state") as gateway:
        headers = {"authorization": f"Bearer {gateway.token}"}
        with httpx.Client(base_url=gateway.url, headers=headers, timeout=60) as http:
            for answer in (
                http.get("/.well-known/agent-card.json"),
                http.post("/a2a/rpc", json={}),
                http.put("/v1/a2a/agents/bob", json={"url": "http://127.0.0.1:1"}),
            ):
                assert (answer.status_code, answer.json()["code"]) == (503, "extra_missing")
                assert "pip install 'gatepost[a2a]'" in answer.json()["message"]
            assert http.get("/v1/a2a/agents").json() == []
        assert not (tmp_path / "state" / "a2a-records.db").exists()
