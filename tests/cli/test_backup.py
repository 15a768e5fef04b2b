"""`gatepost backup` and `gatepost restore`, on a gateway started by `gatepost up`."""

import tarfile
from pathlib import Path

from tests.cli.conftest import Cli, gateway


def test_back_up_restore_and_release(tmp_path: Path) -> None:
    home, file = tmp_path / "state", tmp_path / "lab.tar"
    home.mkdir(mode=0o700)
    with gateway(home, GATEPOST_NODE__ID="lab") as cli:
        cli.ok("agent", "add", "bob")
        cli.ok("send", "bob", "hello")
        said = cli.ok("backup", str(file))
        assert said.startswith(f"{file}: node lab up to seq 2, ")
        again = cli("backup", str(file), "--json")
        assert (again.code, again.error["code"]) == (1, "backup_error")
        locked = cli("restore", str(file), "--yes", "--json")
        assert (locked.code, locked.error["code"]) == (1, "journal_locked")
        assert len(cli.take("bob")) == 1
    assert file.stat().st_mode & 0o777 == 0o600
    stopped = Cli(home, GATEPOST_NODE__ID="lab")
    assert stopped("restore", str(file)).code == 2, "nobody can be asked, and --yes is not given"
    said = stopped.ok("restore", str(file), "--yes")
    assert "1 message that waited may be processed already: see `gatepost dlq list`" in said
    assert f"the journal that was here is in {home}/before-restore-" in said
    with gateway(home, GATEPOST_NODE__ID="lab") as cli:
        assert cli.take("bob") == []
        (letter,) = cli.json("dlq", "list", "bob")["messages"]
        assert letter["reason"] == "restored from a backup"
        cli.ok("dlq", "replay", "bob", "--all")
        assert [message["payload"] for message in cli.take("bob")] == ["hello"]
        assert "journal.restore" in cli.ok("audit")


def test_a_file_that_is_no_backup_is_refused(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "state", GATEPOST_NODE__ID="lab")
    with tarfile.open(tmp_path / "x.tar", "w"):
        pass
    for file in ("x.tar", "missing.tar"):
        result = cli("restore", str(tmp_path / file), "--yes", "--json")
        assert (result.code, result.error["code"]) == (1, "backup_error")
    empty = cli("backup", str(tmp_path / "y.tar"), "--json")
    assert (empty.code, empty.error["code"]) == (1, "backup_error")
