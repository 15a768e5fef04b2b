"""The signed list of a node's segments. A file that it does not list is not part of the archive."""

from collections.abc import Sequence
from hashlib import sha256
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from gatepost.archive.store import Store
from gatepost.errors import ArchiveError
from gatepost.events import NodeKey, frame_parts, verify_signature

VERSION: Final = 1
NAME: Final = "_manifest.json"

_DOMAIN = "gatepost/manifest/1"
_PREFIX = "node="

_encoder = msgspec.json.Encoder(order="sorted")

Count = Annotated[int, Meta(ge=0)]


class Incarnation(Struct, frozen=True, rename="camel"):
    """One incarnation of the node's journal. Its hash chain starts at `first_seq`."""

    id: str
    first_seq: Annotated[int, Meta(ge=1)]


class Segment(Struct, frozen=True, kw_only=True, rename="camel"):
    """One Parquet file: a contiguous range of one incarnation on one UTC date.

    `path` is relative to the node's folder; `chain` is the hash chain after `last`, in hex.
    """

    path: str
    incarnation: str
    first: Annotated[int, Meta(ge=1)]
    last: Annotated[int, Meta(ge=1)]
    rows: Count
    bytes: Count
    sha256: str
    min_created_at: Count
    max_created_at: Count
    chain: str
    sealed_at: Count


class Manifest(Struct, frozen=True, kw_only=True, rename="camel"):
    version: int = VERSION
    node: str
    public_key: bytes
    incarnations: tuple[Incarnation, ...] = ()
    segments: tuple[Segment, ...] = ()
    sealed_through: Count = 0
    signature: bytes = b""

    @property
    def last(self) -> Segment | None:
        return self.segments[-1] if self.segments else None

    @property
    def rows(self) -> int:
        return sum(segment.rows for segment in self.segments)


def folder_of(node: str) -> str:
    return f"{_PREFIX}{node}"


def name_of(node: str) -> str:
    return f"{folder_of(node)}/{NAME}"


def nodes(store: Store) -> list[str]:
    """The nodes that have a folder in the archive."""
    return [f.removeprefix(_PREFIX) for f in store.folders() if f.startswith(_PREFIX)]


def sign(manifest: Manifest, key: NodeKey) -> Manifest:
    bare = replace(manifest, public_key=key.public)
    return replace(bare, signature=key.sign(_statement(bare)))


def is_signed(manifest: Manifest) -> bool:
    """Whether the manifest was signed by the key that it names."""
    return verify_signature(manifest.public_key, _statement(manifest), manifest.signature)


def extended(manifest: Manifest, segment: Segment, first_seq: int) -> Manifest:
    """Append a segment; the result is unsigned. `first_seq` starts the segment's incarnation."""
    incarnations = manifest.incarnations
    if segment.incarnation not in {incarnation.id for incarnation in incarnations}:
        incarnations = (*incarnations, Incarnation(segment.incarnation, first_seq))
    return replace(
        manifest,
        incarnations=incarnations,
        segments=(*manifest.segments, segment),
        sealed_through=segment.last,
    )


def merged(manifest: Manifest, parts: Sequence[Segment], whole: Segment) -> Manifest:
    """Replace adjacent segments by the one merged from them; the result is unsigned."""
    start = manifest.segments.index(parts[0])
    after = manifest.segments[start + len(parts) :]
    return replace(manifest, segments=(*manifest.segments[:start], whole, *after))


def encode(manifest: Manifest) -> bytes:
    return _encoder.encode(manifest)


def decode(data: bytes, where: str) -> Manifest:
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ArchiveError(f"{where} is not a manifest ({error}); restore it from a copy") from None
    if manifest.version != VERSION:
        raise ArchiveError(
            f"{where} has version {manifest.version}, this Gatepost reads {VERSION}; upgrade it"
        )
    return manifest


def read(store: Store, node: str) -> Manifest | None:
    """Read a node's manifest without checking its signature; None if there is none."""
    data = store.read(name_of(node))
    return None if data is None else decode(data, store.path(name_of(node)))


def write(store: Store, manifest: Manifest) -> None:
    store.write(name_of(manifest.node), encode(manifest))


def digest(content: "bytes | memoryview") -> str:
    return sha256(content).hexdigest()


def _statement(manifest: Manifest) -> bytes:
    """The bytes to sign: the manifest in canonical JSON, without its signature."""
    fields = msgspec.to_builtins(manifest)
    del fields["signature"]
    return frame_parts(_DOMAIN, _encoder.encode(fields))
