"""Field names as clients write them: snake_case or camelCase, in any object of the API.

Our own client writes the names of the structs, and its objects are decoded as they are. Only an
object that cannot be decoded in this way is read again here, and its names are replaced by those of
the structs. So only clients that use the other spelling pay for it. A struct may have `other_names`
for its fields, such as those of a document.
"""

from functools import cache
from typing import Any

import msgspec
from msgspec import Raw, Struct, inspect

from gatepost.errors import InvalidRequest

_decode_list = msgspec.json.Decoder(list[Raw]).decode
_decode_object = msgspec.json.Decoder(dict[str, Raw]).decode
_encode = msgspec.json.Encoder().encode


class ListShape(Struct, frozen=True):
    """A list whose items have names to look at."""

    item: "ObjectShape | UnionShape"


class ObjectShape(Struct, frozen=True):
    """A struct: its field names by all their spellings, and those of its fields that have a shape.

    An `open` object may have fields that the struct does not know; they are left out.
    """

    names: dict[str, str]
    parts: dict[str, "Shape"]
    open: bool


class UnionShape(Struct, frozen=True):
    """Structs told apart by the tag in `field`, or a list of them."""

    field: str
    objects: dict[str, ObjectShape]
    list: ListShape | None


Shape = ListShape | ObjectShape | UnionShape


def rename_fields(type: Any, text: bytes | str) -> bytes | None:
    """The JSON `text` with the field names of `type`; None if nothing in it has names.

    InvalidRequest if a field is given in both spellings.
    """
    shape = _find_shape(type)
    if shape is None:
        return None
    return bytes(_rename(shape, Raw(text if isinstance(text, bytes) else text.encode())))


def spell_camel(name: str) -> str:
    """A snake_case name in camelCase."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def spell_snake(name: str) -> str:
    """A camelCase name in snake_case."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def spellings(names: list[str]) -> dict[str, str]:
    """Each name by its spellings."""
    found = {spell(name): name for name in names for spell in (spell_camel, spell_snake)}
    return found | {name: name for name in names}


def take_name(given: str, names: dict[str, str], taken: Any) -> str:
    """The name that a client means; InvalidRequest if it is among those `taken` before."""
    name = names.get(given, given)
    if name in taken:
        raise InvalidRequest(f"`{name}` is given twice")
    return name


def _rename(shape: Shape, raw: Raw) -> Raw:
    try:
        if isinstance(shape, ListShape):
            return Raw(_encode([_rename(shape.item, item) for item in _decode_list(raw)]))
        if isinstance(shape, UnionShape):
            return _rename_one_of(shape, raw)
        return Raw(_encode(_rename_object(shape, _decode_object(raw))))
    except msgspec.ValidationError:
        # Something else than an object or a list: the decoder of the struct says so.
        return raw


def _rename_one_of(shape: UnionShape, raw: Raw) -> Raw:
    if shape.list is not None and bytes(raw).lstrip().startswith(b"["):
        return _rename(shape.list, raw)
    fields = _decode_object(raw)
    tag = msgspec.json.decode(fields.get(shape.field, Raw(b"null")))
    chosen = shape.objects.get(tag) if isinstance(tag, str) else None
    return raw if chosen is None else Raw(_encode(_rename_object(chosen, fields)))


def _rename_object(shape: ObjectShape, fields: dict[str, Raw]) -> dict[str, Raw]:
    renamed: dict[str, Raw] = {}
    for given, value in fields.items():
        name = take_name(given, shape.names, renamed)
        part = shape.parts.get(name)
        if name in shape.names or not shape.open:
            renamed[name] = value if part is None else _rename(part, value)
    return renamed


@cache
def _find_shape(type: Any) -> Shape | None:
    return _shape_of(inspect.type_info(type))


def _shape_of(info: inspect.Type) -> Shape | None:
    if isinstance(info, inspect.Metadata):
        return _shape_of(info.type)
    if isinstance(info, inspect.ListType):
        item = _shape_of(info.item_type)
        return ListShape(item) if isinstance(item, ObjectShape | UnionShape) else None
    if isinstance(info, inspect.UnionType):
        return _shape_of_union(info)
    return _shape_of_struct(info) if isinstance(info, inspect.StructType) else None


def _shape_of_union(info: inspect.UnionType) -> Shape | None:
    parts = [part.type if isinstance(part, inspect.Metadata) else part for part in info.types]
    structs = [part for part in parts if isinstance(part, inspect.StructType)]
    lists = (_shape_of(part) for part in parts if isinstance(part, inspect.ListType))
    found = next((part for part in lists if isinstance(part, ListShape)), None)
    if len(structs) == 1 and found is None:
        return _shape_of_struct(structs[0])
    if not structs:
        return found
    objects = {str(part.tag): _shape_of_struct(part) for part in structs}
    return UnionShape(structs[0].tag_field or "", objects, found)


def _shape_of_struct(info: inspect.StructType) -> ObjectShape:
    names = [field.encode_name for field in info.fields]
    tag = [info.tag_field] if info.tag_field else []
    parts = {field.encode_name: _shape_of(field.type) for field in info.fields}
    known = {name: part for name, part in parts.items() if part is not None}
    others: dict[str, str] = getattr(info.cls, "other_names", {})
    aliases = {given: others[name] for given, name in spellings(list(others)).items()}
    is_open = getattr(info.cls, "is_open", False)
    return ObjectShape(aliases | spellings(names + tag), known, is_open)
