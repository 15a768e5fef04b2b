"""Files that are whole or not there."""

from pathlib import Path

import pytest

from gatepost.migration.migration_files import remove_file, replace_file


def test_a_new_file_is_private_and_an_old_one_keeps_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "x"
    replace_file(file, b"1")
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o644)
    replace_file(file, b"2")
    assert file.stat().st_mode & 0o777 == 0o644
    assert file.read_bytes() == b"2"
    assert list(tmp_path.iterdir()) == [file]


def test_removing_what_is_gone_is_no_error(tmp_path: Path) -> None:
    remove_file(tmp_path / "x")


def test_the_old_content_stays_if_the_new_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "x"
    replace_file(file, b"1")
    with pytest.raises(TypeError):
        replace_file(file, "not bytes")  # type: ignore[arg-type]
    assert file.read_bytes() == b"1"
