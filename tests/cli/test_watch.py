"""`gatepost watch` and `--watch`: what a gateway says while it happens."""

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from threading import Thread

from tests.cli.conftest import Cli

_PATIENCE = 60.0


class Watched:
    """The lines that a command prints, as they come."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self._lines: Queue[str] = Queue()
        Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))

    def wait_for(self, is_wanted: Callable[[str], bool]) -> list[str]:
        """The lines up to the first that is wanted."""
        seen: list[str] = []
        while not seen or not is_wanted(seen[-1]):
            try:
                seen.append(self._lines.get(timeout=_PATIENCE))
            except Empty:
                raise AssertionError(f"it printed only {seen}") from None
        return seen

    def interrupt(self) -> tuple[int, str]:
        """The exit status after Ctrl-C, and what was said on standard error."""
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(_PATIENCE)
        assert self.process.stderr is not None
        return code, self.process.stderr.read()


@contextmanager
def watched(cli: Cli, *arguments: str) -> Iterator[Watched]:
    with cli.running(*arguments) as process:
        yield Watched(process)


def test_watch_prints_every_event_of_an_agent_and_ends_with_ctrl_c(cli: Cli) -> None:
    cli.ok("agent", "add", "watched", "other")
    with watched(cli, "watch", "watched", "--json") as watching:
        # Nothing tells a program in a pipe when the first event would be heard: send until one is.
        first: list[str] = []
        reader = Thread(target=lambda: first.extend(watching.wait_for(bool)), daemon=True)
        reader.start()
        while not first:
            cli.call("POST", "/messages", from_agent="watched", to_agent="other", payload="")
            reader.join(0.5)
        unwatched = cli.message_to("other")
        id = cli.dead_letter("watched")
        lines = watching.wait_for(lambda line: id in line and '"processed"' in line)
        steps = [json.loads(line) for line in [*first, *lines]]
        assert unwatched not in {step["event_id"] for step in steps}
        about = [step["what"] for step in steps if step["event_id"] == id]
        assert about == ["sent", "accepted", "processed"]
        assert watching.interrupt() == (130, "")


def test_watched_mail_is_listed_again_when_it_changes(cli: Cli) -> None:
    cli.ok("agent", "add", "listed")
    with watched(cli, "inbox", "listed", "--watch", "--json") as watching:
        watching.wait_for(lambda line: line == '{"messages":[]}')
        id = cli.message_to("listed")
        watching.wait_for(lambda line: id in line)
        assert watching.interrupt() == (130, "")
    assert "--watch lists mail" in cli("inbox", "listed", "--watch", "--take").err


def test_watched_status_nodes_and_tasks_print_at_once(cli: Cli) -> None:
    # Its gateway is in a room from now on.
    cli.invite("--node", "laptop")
    for command, seen in (
        (("status",), "accepting messages"),
        (("nodes", "--json"), '"nodes":'),
        (("task", "list"), "no matching tasks"),
    ):
        with watched(cli, *command, "--watch") as watching:
            watching.wait_for(lambda line, seen=seen: seen in line)  # type: ignore[misc]
            assert watching.interrupt()[0] == 130


def test_a_watched_status_is_redrawn_on_a_terminal(cli: Cli) -> None:
    with cli.on_terminal("status", "--watch") as terminal:
        terminal.read("Ctrl-C ends")
        cli.call("PUT", "/agents/drawn")
        cli.message_to("drawn")
        assert "drawn" in terminal.read("drawn")
        terminal.process.send_signal(signal.SIGINT)
        # What was seen last stays on the terminal.
        assert "drawn" in terminal.read()
        assert terminal.process.wait(_PATIENCE) == 130


def test_a_watch_of_no_gateway_ends_at_once(tmp_path: Path) -> None:
    home = tmp_path / "state"
    home.mkdir(mode=0o700)
    assert Cli(home)("watch").code == 3
    assert Cli(home)("status", "--watch").code == 3
