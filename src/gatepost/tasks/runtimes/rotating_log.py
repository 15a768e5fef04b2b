"""The log of a session: bounded in bytes and in bytes per second, and readable by offset.

The log is a few files named `log.<offset of the first byte>`. When the newest reaches half of the
bound, a new one is started and the oldest deleted. Offsets therefore never change, and a reader can
follow them while the session writes. Only the standard library: the supervisor of a session imports
this.
"""

import os
from contextlib import suppress

# Fewer modules make a smaller process to fork.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

_PREFIX = "log."
_BYTES_PER_SEC = 8 * 1024 * 1024


class RotatingLog:
    """The writing end; the file is created with the first output.

    `now` is in seconds, of any clock that does not go back.
    """

    def __init__(self, folder: str, limit: int) -> None:
        self._folder = folder
        self._part_size = max(1, limit // 2)
        self._end = 0
        self._starts: list[int] = []
        self._file = -1
        self._window = -1
        self._window_bytes = 0
        self._left_out = 0

    def write(self, data: bytes, now: float) -> None:
        """Append data. Output beyond the rate limit is dropped, and a note in the log says so."""
        if int(now) != self._window:
            self._window, self._window_bytes = int(now), 0
            self._note_left_out()
        if self._window_bytes >= _BYTES_PER_SEC:
            self._left_out += len(data)
            return
        self._window_bytes += len(data)
        self._append(data)

    def close(self) -> None:
        self._note_left_out()
        if self._file >= 0:
            os.close(self._file)

    def _note_left_out(self) -> None:
        if self._left_out:
            note = f"\n[gatepost: {self._left_out} bytes of output were left out]\n"
            self._left_out = 0
            self._append(note.encode())

    def _append(self, data: bytes) -> None:
        while data:
            try:
                if not self._starts or self._end - self._starts[-1] >= self._part_size:
                    self._begin_part()
                piece = data[: self._starts[-1] + self._part_size - self._end]
                os.write(self._file, piece)
            except OSError:
                return  # A full disk must not end the session.
            self._end += len(piece)
            data = data[len(piece) :]

    def _begin_part(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        path = f"{self._folder}/{_PREFIX}{self._end}"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._starts.append(self._end)
        while len(self._starts) > 2:
            os.unlink(f"{self._folder}/{_PREFIX}{self._starts.pop(0)}")  # noqa: PTH108


def read_log(folder: "Path", offset: int, limit: int) -> tuple[int, bytes]:
    """Read up to `limit` bytes from `offset` on; returns where they really begin, and the bytes.

    A negative offset counts from the end.
    """
    if offset < 0:
        offset = tail_offset(folder, -offset)
    data, begin = b"", None
    for start, path in _list_parts(folder):
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            continue  # It was dropped meanwhile.
        if begin is not None and start != begin + len(data):
            break  # One in between was dropped: what follows is read next time.
        skipped = max(0, offset - start)
        if begin is None and skipped >= len(content):
            continue
        begin = start + skipped if begin is None else begin
        data += content[skipped:]
        if len(data) >= limit:
            break
    return (offset, b"") if begin is None else (begin, data[:limit])


def remove_log(folder: "Path") -> None:
    for _, path in _list_parts(folder):
        path.unlink(missing_ok=True)


def tail_offset(folder: "Path", length: int) -> int:
    """The offset at which the last `length` bytes begin."""
    end = 0
    for start, path in _list_parts(folder):
        with suppress(FileNotFoundError):
            end = max(end, start + path.stat().st_size)
    return max(0, end - length)


def _list_parts(folder: "Path") -> "list[tuple[int, Path]]":
    try:
        names = [path for path in folder.iterdir() if path.name.startswith(_PREFIX)]
    except FileNotFoundError:
        return []
    starts = [(path.name.removeprefix(_PREFIX), path) for path in names]
    return sorted((int(start), path) for start, path in starts if start.isdigit())
