"""Storage of an archive: a folder on any filesystem of pyarrow, with atomic file writes."""

from pathlib import Path
from stat import S_ISREG

import pyarrow as pa
from pyarrow import fs

from gatepost.archive.storage_uri import open_filesystem
from gatepost.errors import ConfigError, StorageFailed
from gatepost.files import sync_folder, write_file_atomically

# Object stores publish a file when it is closed. Other filesystems need a rename.
_ATOMIC_FILESYSTEMS = ("s3", "gcs", "abfs")
_TEMPORARY_SUFFIX = ".tmp"


class ArchiveStore:
    """Files by their path below the root. Readers never see a partial file, even after a crash."""

    def __init__(self, filesystem: fs.FileSystem, root: str) -> None:
        self._fs = filesystem
        self.root = root.rstrip("/")

    @classmethod
    def open(cls, uri: str) -> "ArchiveStore":
        """Open the archive at a local path, or at a URI such as `s3://bucket/folder`."""
        try:
            return cls(*open_filesystem(uri))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise ConfigError(
                f"no archive can be kept at {uri!r}: {error};"
                " set archive.uri to a folder, or to a URI such as s3://bucket/folder"
            ) from None

    @property
    def is_local(self) -> bool:
        return isinstance(self._fs, fs.LocalFileSystem)

    @property
    def filesystem(self) -> fs.FileSystem:
        return self._fs

    def full_path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def is_special_file(self, name: str) -> bool:
        """Whether this name is a folder, or a device or pipe that a reader might wait for."""
        if not self.is_local:
            return False
        try:
            return not S_ISREG(Path(self.full_path(name)).stat().st_mode)
        except OSError:
            return False

    def read_file(self, name: str) -> bytes | None:
        """The file's content; None if it does not exist."""
        if self.is_special_file(name):
            return None
        try:
            with self._fs.open_input_file(self.full_path(name)) as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _storage_error("read", self.full_path(name), error) from error

    def write_file(self, name: str, content: "bytes | memoryview | pa.Buffer") -> None:
        """Replace the file atomically. On a local disk it is synced before it becomes visible."""
        try:
            self._write_atomically(self.full_path(name), content)
        except OSError as error:
            raise _storage_error("write", self.full_path(name), error) from error

    def delete_file(self, name: str) -> None:
        """Delete a file. A missing file is not an error."""
        try:
            self._fs.delete_file(self.full_path(name))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise _storage_error("delete", self.full_path(name), error) from error

    def list_files(self, folder: str = "") -> list[str]:
        """Paths of all files below a folder, relative to the root, sorted."""
        base = self.full_path(folder) if folder else self.root
        selector = fs.FileSelector(base, recursive=True, allow_not_found=True)
        try:
            found = self._fs.get_file_info(selector)
        except OSError as error:
            raise _storage_error("list", base, error) from error
        start = len(self.root) + 1
        return sorted(info.path[start:] for info in found if info.type == fs.FileType.File)

    def list_folders(self) -> list[str]:
        """The folders right below the root."""
        selector = fs.FileSelector(self.root, allow_not_found=True)
        try:
            found = self._fs.get_file_info(selector)
        except OSError as error:
            raise _storage_error("list", self.root, error) from error
        return sorted(info.base_name for info in found if info.type == fs.FileType.Directory)

    def _write_atomically(self, path: str, content: "bytes | memoryview | pa.Buffer") -> None:
        if self.is_local:
            _make_folder(Path(path).parent)
            # Readable by its owner alone, because it has the reasons of failed turns in clear text.
            write_file_atomically(Path(path), memoryview(content))
        elif self._fs.type_name in _ATOMIC_FILESYSTEMS:
            self._write_stream(path, content)
        else:
            folder, _, name = path.rpartition("/")
            self._fs.create_dir(folder, recursive=True)
            temporary = f"{folder}/.{name}{_TEMPORARY_SUFFIX}"
            self._write_stream(temporary, content)
            self._fs.move(temporary, path)

    def _write_stream(self, path: str, content: "bytes | memoryview | pa.Buffer") -> None:
        with self._fs.open_output_stream(path) as file:
            file.write(content)


def _make_folder(folder: Path) -> None:
    """Create a folder and its parents durably, so that they survive a power cut."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        sync_folder(folder.parent)


def _storage_error(what: str, path: str, error: OSError) -> StorageFailed:
    return StorageFailed(f"the archive cannot {what} {path}: {error}")
