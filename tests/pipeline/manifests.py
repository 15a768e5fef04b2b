"""Manifests without files, for checks that read nothing else."""

from gatepost.archive.manifest import ArchiveSegment


def archived_segment(incarnation: str, first: int, last: int, at: int) -> ArchiveSegment:
    """A segment as a manifest lists it; nobody reads its file."""
    return ArchiveSegment(
        path="",
        incarnation=incarnation,
        first=first,
        last=last,
        rows=last - first + 1,
        bytes=0,
        sha256="",
        min_created_at=at,
        max_created_at=at,
        chain="",
        archived_at=at,
    )
