"""A full disk ends a job in one sentence, and the next run finishes its batch."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gatepost.cli.runner import run_command
from gatepost.errors import TablesFull
from gatepost.pipeline.job_errors import describe_error, is_about_tables, is_disk_full
from gatepost.pipeline.jobs.batch_plan import BatchPlanner
from tests.pipeline.worlds import World

pytestmark = pytest.mark.timeout(600)

_KIB = 1024
_REST: tuple[int, ...] = (0, 24 * _KIB, 240 * _KIB)


@contextmanager
def small_disk(path: Path) -> Iterator[Path]:
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "gatepost-test", str(path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("cannot mount a small file system here")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def leave(folder: Path, rest: int) -> Path:
    """Fill the disk but for so many bytes."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        while True:
            try:
                file.write(bytes(64 * _KIB))
            except OSError:
                break
        file.truncate(max(0, file.tell() - rest))
    return ballast


@pytest.mark.parametrize(
    ("engine", "rest"), [*(("local", rest) for rest in _REST), ("spark", 240 * _KIB)]
)
def test_a_full_disk_is_one_sentence_and_the_next_run_goes_on(
    spark: SparkSession,
    world: World,
    tmp_path: Path,
    engine: str,
    rest: int,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Whether no batch can be recorded, no commit written, or no file of rows."""

    def look_again(*_: object) -> None:
        pytest.fail("the archive is read again, which is not to blame")

    with small_disk(tmp_path / "disk") as disk:
        ballast, tables = leave(disk, rest), str(disk / "tables")
        places = ["--archive", world.archive, "--tables", tables, "--engine", engine]
        with monkeypatch.context() as patch:
            patch.setattr(BatchPlanner, "plan_again", look_again)
            code = run_command(["pipeline", "run", *places])
        shown = capfd.readouterr()
        assert (code, shown.out) == (1, "")
        said = [line for line in shown.err.splitlines() if line.startswith("gatepost: ")]
        assert len(said) == 1
        assert said[0].startswith(f"gatepost: the disk of {tables}")
        assert "is full: free some space" in said[0]
        if engine == "local":
            assert shown.err.splitlines() == said
        assert "Exception ignored" not in shown.err
        ballast.unlink()
        assert run_command(["pipeline", "run", *places]) == 0
        world.assert_same(tables)


def test_a_full_disk_is_known_by_number_and_by_text() -> None:
    assert is_disk_full(OSError(28, "No space left on device"))
    assert is_disk_full(OSError("Generic LocalFileSystem error: … (os error 122)"))
    assert not is_disk_full(OSError(5, "Input/output error"))
    told = "Traceback (most recent call last):\n  File x\ngatepost.errors.TablesFull: the disk"
    assert is_about_tables(RuntimeError(told))
    assert is_about_tables(TablesFull("the disk"))
    assert not is_about_tables(RuntimeError("a segment"))
    assert describe_error(OSError(5, "Input/output error")) is not None
