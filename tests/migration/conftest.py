"""A real gateway that migrates, and real Yjs in Node.js."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gatepost.migration import MigrationFolder
from gatepost.testing import GatewayProcess
from tests.js.conftest import installed

__all__ = ["installed"]


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path / "state", node__id="new") as running:
        yield running


@pytest.fixture
def folder(gateway: GatewayProcess) -> MigrationFolder:
    return MigrationFolder(gateway.state_dir)
