from pathlib import Path

from gatepost.tasks.runtimes.rotating_log import RotatingLog, read_log, tail_offset


def test_a_log_keeps_its_newest_bytes_and_their_offsets(tmp_path: Path) -> None:
    log = RotatingLog(str(tmp_path), 100)
    text = b"".join(b"%03d," % number for number in range(100))
    for index in range(0, len(text), 7):
        log.write(text[index : index + 7], 0.0)
    log.close()
    start, data = read_log(tmp_path, 0, 10_000)
    assert 50 <= len(data) <= 100
    assert (start, data) == (len(text) - len(data), text[-len(data) :])
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 100


def test_a_reader_follows_by_offset(tmp_path: Path) -> None:
    log = RotatingLog(str(tmp_path), 1000)
    assert read_log(tmp_path, 0, 100) == (0, b"")
    log.write(b"one", 0.0)
    assert read_log(tmp_path, 0, 100) == (0, b"one")
    log.write(b"two", 0.0)
    assert read_log(tmp_path, 3, 100) == (3, b"two")
    assert read_log(tmp_path, 3, 2) == (3, b"tw")
    assert read_log(tmp_path, 6, 100) == (6, b"")
    assert read_log(tmp_path, 99, 100) == (99, b"")
    assert tail_offset(tmp_path, 4) == 2
    assert tail_offset(tmp_path, 100) == 0


def test_a_reader_reads_across_parts(tmp_path: Path) -> None:
    log = RotatingLog(str(tmp_path), 10)
    log.write(b"0123456789", 0.0)
    assert read_log(tmp_path, 0, 100) == (0, b"0123456789")
    assert read_log(tmp_path, 3, 4) == (3, b"3456")
    assert read_log(tmp_path, 7, 9) == (7, b"789")
    log.write(b"ab", 0.0)
    assert read_log(tmp_path, 0, 100) == (5, b"56789ab")


def test_output_beyond_the_rate_is_left_out_and_noted(tmp_path: Path) -> None:
    log = RotatingLog(str(tmp_path), 1000)
    mib = b"x" * 2**20
    for _ in range(10):
        log.write(mib, 5.0)
    log.write(b"later", 6.0)
    log.close()
    assert read_log(tmp_path, 0, 10_000)[1].endswith(
        b"[gatepost: 2097152 bytes of output were left out]\nlater"
    )


def test_a_folder_without_a_log_has_an_empty_one(tmp_path: Path) -> None:
    assert read_log(tmp_path / "none", 5, 10) == (5, b"")
    assert tail_offset(tmp_path / "none", 10) == 0


def test_a_log_without_output_has_no_file(tmp_path: Path) -> None:
    log = RotatingLog(str(tmp_path), 100)
    log.close()
    assert list(tmp_path.iterdir()) == []
    assert read_log(tmp_path, 0, 10) == (0, b"")
