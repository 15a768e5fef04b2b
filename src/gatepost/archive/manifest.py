"""The signed list of a node's segments. A file that it does not list is not part of the archive."""

from collections.abc import Sequence
from hashlib import sha256
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from gatepost.archive.archive_store import ArchiveStore
from gatepost.archive.signed_json import bytes_to_sign, encode_canonical
from gatepost.errors import ArchiveError, ArchiveTooNew
from gatepost.events import NodeKey, verify_signature
from gatepost.events.envelope import MAX_JSON_INT

MANIFEST_VERSION: Final = 1
MANIFEST_NAME: Final = "_manifest.json"

_DOMAIN = "gatepost/manifest/1"
_NODE_PREFIX = "node="

NonNegative = Annotated[int, Meta(ge=0, le=MAX_JSON_INT)]
Positive = Annotated[int, Meta(ge=1, le=MAX_JSON_INT)]
# A manifest must not point outside its node's folder.
_SEGMENT_PATH = r"\Adate=\d{4}-\d\d-\d\d/[A-Za-z0-9_.-]{1,200}\.parquet\Z"
SegmentPath = Annotated[str, Meta(pattern=_SEGMENT_PATH)]
Sha256Hex = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class ArchivedIncarnation(Struct, frozen=True, rename="camel"):
    """One incarnation of the node's journal. Its hash chain starts at `first_seq`."""

    id: str
    first_seq: Positive


class ArchiveSegment(Struct, frozen=True, kw_only=True, rename="camel"):
    """One Parquet file: a contiguous range of one incarnation on one UTC date.

    `path` is relative to the node's folder; `chain` is the hash chain after `last`, in hex.
    """

    path: SegmentPath
    incarnation: str
    first: Positive
    last: Positive
    rows: NonNegative
    bytes: NonNegative
    sha256: Sha256Hex
    min_created_at: NonNegative
    max_created_at: NonNegative
    chain: Sha256Hex
    archived_at: NonNegative


class _ManifestVersion(Struct):
    """The only field of which every version has the same meaning."""

    version: int = MANIFEST_VERSION


class ArchiveManifest(Struct, frozen=True, kw_only=True, rename="camel"):
    version: int = MANIFEST_VERSION
    node: str
    public_key: bytes
    incarnations: tuple[ArchivedIncarnation, ...] = ()
    segments: tuple[ArchiveSegment, ...] = ()
    archived_through: NonNegative = 0
    signature: bytes = b""

    @property
    def rows(self) -> int:
        return sum(segment.rows for segment in self.segments)


def node_folder(node: str) -> str:
    return f"{_NODE_PREFIX}{node}"


def manifest_path(node: str) -> str:
    return f"{node_folder(node)}/{MANIFEST_NAME}"


def archived_nodes(store: ArchiveStore) -> list[str]:
    """The nodes that have a folder in the archive."""
    return [
        f.removeprefix(_NODE_PREFIX) for f in store.list_folders() if f.startswith(_NODE_PREFIX)
    ]


def sign_manifest(manifest: ArchiveManifest, key: NodeKey) -> ArchiveManifest:
    bare = replace(manifest, public_key=key.public)
    return replace(bare, signature=key.sign(bytes_to_sign(_DOMAIN, bare)))


def is_manifest_signed(manifest: ArchiveManifest) -> bool:
    """Whether the manifest was signed by the key that it names."""
    signed = bytes_to_sign(_DOMAIN, manifest)
    return verify_signature(manifest.public_key, signed, manifest.signature)


def append_segment(
    manifest: ArchiveManifest, segment: ArchiveSegment, first_seq: int
) -> ArchiveManifest:
    """Append a segment; the result is unsigned. `first_seq` starts the segment's incarnation."""
    incarnations = manifest.incarnations
    if segment.incarnation not in {incarnation.id for incarnation in incarnations}:
        incarnations = (*incarnations, ArchivedIncarnation(segment.incarnation, first_seq))
    return replace(
        manifest,
        incarnations=incarnations,
        segments=(*manifest.segments, segment),
        archived_through=segment.last,
    )


def replace_segments(
    manifest: ArchiveManifest, parts: Sequence[ArchiveSegment], whole: ArchiveSegment
) -> ArchiveManifest:
    """Replace adjacent segments by the one merged from them; the result is unsigned."""
    start = manifest.segments.index(parts[0])
    after = manifest.segments[start + len(parts) :]
    return replace(manifest, segments=(*manifest.segments[:start], whole, *after))


def encode_manifest(manifest: ArchiveManifest) -> bytes:
    return encode_canonical(manifest)


def decode_manifest(data: bytes, where: str) -> ArchiveManifest:
    try:
        # First, because a later version may have other fields.
        version = msgspec.json.decode(data, type=_ManifestVersion).version
        if version > MANIFEST_VERSION:
            raise ArchiveTooNew(
                f"{where} has version {version}, this Gatepost reads {MANIFEST_VERSION}; upgrade it"
            )
        return msgspec.json.decode(data, type=ArchiveManifest)
    except (ValueError, RecursionError) as error:
        raise ArchiveError(f"{where} is not a manifest ({error}); restore it from a copy") from None


def read_manifest(store: ArchiveStore, node: str) -> ArchiveManifest | None:
    """Read a node's manifest without checking its signature; None if there is none."""
    data = store.read_file(manifest_path(node))
    return None if data is None else decode_manifest(data, store.full_path(manifest_path(node)))


def write_manifest(store: ArchiveStore, manifest: ArchiveManifest) -> None:
    store.write_file(manifest_path(manifest.node), encode_manifest(manifest))


def read_verified_segment(store: ArchiveStore, node: str, segment: ArchiveSegment) -> bytes:
    """The content of a listed segment; raise ArchiveError if it is not the file that was listed."""
    name = f"{node_folder(node)}/{segment.path}"
    content = store.read_file(name)
    if content is None or content_digest(content) != segment.sha256:
        where = store.full_path(name)
        raise ArchiveError(f"{where} is not the file that was archived; restore it from a copy")
    return content


def content_digest(content: "bytes | memoryview") -> str:
    return sha256(content).hexdigest()
