"""What the room reads in an update is what the `yjs` package reads in it."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gatepost.room import SharedRoom
from gatepost.room.records import MAPS
from tests.security.yjs_cases import accepted_case, held_values, new_room, served_updates


@pytest.mark.timeout(600)
def test_accepted_and_served_updates_say_to_yjs_what_the_room_has_read(
    installed: Path, count: Callable[[int, int], int]
) -> None:
    before, documents, rooms = served_updates(new_room()), list[list[bytes]](), list[SharedRoom]()
    for number in range(count(600, 10_000)):
        case = accepted_case(Random(f"js/{number}"))
        if case is not None:
            documents += [[*before, case[0]], served_updates(case[1])]
            rooms += [case[1], case[1]]
    for read, holder in zip(_read_documents(installed, documents), rooms, strict=True):
        assert not read["pending"]
        assert read["shown"] == held_values(holder)
        clocks = {int(client): int(clock) for client, clock in read["clocks"]}
        assert clocks == dict(holder.document.slot_clocks())
    assert len(documents) > 100


def _read_documents(installed: Path, documents: list[list[bytes]]) -> list[Any]:
    lines = [
        json.dumps({"maps": list(MAPS), "updates": [update.hex() for update in updates]})
        for updates in documents
    ]
    result = subprocess.run(
        ["node", "reader.mjs"],
        cwd=installed,
        input="\n".join(lines),
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    return [json.loads(line) for line in result.stdout.splitlines()]
