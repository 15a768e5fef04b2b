"""Encode records as the JSON bytes of their events, and as the columns of the archive.

A gateway encodes one event at a time. This module encodes a whole segment at once: it joins columns
of text into the JSON of all events. The result is byte for byte the JSON that a gateway writes.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gatepost.archive.schema import EVENT_SCHEMA
from gatepost.pipeline.synth.event_records import (
    TEMPLATES,
    EventTemplate,
    Records,
    SynthEvent,
    record_times,
)
from gatepost.pipeline.synth.mesh import START, IdWords, IntArray, SyntheticMesh, wrapped_key

# The two hex digits of each byte, as one 16-bit number.
_HEX_DIGITS = np.frombuffer(b"".join(b"%02x" % n for n in range(256)), dtype=np.uint16)
# The groups of hex digits in the text of an id, which dashes separate.
_UUID_PARTS = ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))
# True for the templates whose text holds values of the single event, so that it cannot be shared.
_HAS_OWN_TEXT = np.zeros(len(TEMPLATES), dtype=bool)
_HAS_OWN_TEXT[
    [
        SynthEvent.TASK,
        SynthEvent.TASK_LOCAL,
        SynthEvent.TASK_UNROUTED,
        SynthEvent.TASK_ACCEPT,
        SynthEvent.TASK_UPDATE,
    ]
] = True
_HAS_OWN_TEXT[
    [
        SynthEvent.ACCEPTED_TASK,
        SynthEvent.DEAD_EXPIRED,
        SynthEvent.DEAD_REFUSED,
        SynthEvent.DEAD_UNROUTED,
        SynthEvent.SETTLED,
    ]
] = True
Made = TypeVar("Made")

_POLICY_VERSION: Final = "3"
_PLAN_TEXT: Final = "accepted into the queue"


class RecordRow(NamedTuple):
    """One record as a tuple: plain Python values, which are faster to read than numpy fields."""

    key: int
    node: int
    template: int
    source: int
    to_node: int
    to_agent: int
    attempt: int
    payload: int
    blob: int
    capability: int
    mark: int
    pair_seq: int
    expires: int
    number: int
    other: int
    id: list[int]
    ref: list[int]
    corr: list[int]
    causation: list[int]


SizedText = tuple[str, int]


class RecordEncoder:
    """Encodes the records of one node."""

    def __init__(self, mesh: SyntheticMesh, node: int) -> None:
        self._mesh = mesh
        self._node = node
        # Texts that many events share, by combined key.
        self._address_cache: dict[int, str] = {}
        self._tail_cache: dict[int, SizedText] = {}

    def encode_bodies(
        self, rows: Records, seqs: IntArray, previous: IntArray, corr: pa.Array
    ) -> tuple[pa.Array, IntArray]:
        """The JSON of every event, and the size of its inline payload."""
        tails, sizes = self._tail_texts(rows)
        text = pc.binary_join_element_wise(
            '{"eventId":"',
            id_texts(rows["id"]),
            '","seq":',
            _number_texts(seqs),
            _number_fields("pairSeq", rows["pair_seq"]),
            _number_fields("prevSeqTo", previous),
            self._address_texts(rows),
            _id_fields("corrId", corr, rows["corr"]),
            _id_fields("refEventId", None, rows["ref"]),
            _id_fields("causationId", None, rows["causation"]),
            ',"createdAt":',
            _number_texts(record_times(rows) + START),
            _number_fields("expiresAt", np.where(rows["expires"], rows["expires"] + START, 0)),
            tails,
            "",
        )
        return text, sizes

    def _address_texts(self, rows: Records) -> pa.Array:
        """The JSON fields of sender, receiver and kind."""
        keys = _combine_keys(rows, "source", "to_node", "to_agent", "template")
        made, index = _make_once_per_key(keys, rows, self._address_cache, self._address_text)
        return pa.array(made, pa.string()).take(pa.array(index))

    def _address_text(self, row: RecordRow) -> str:
        mesh, node = self._mesh, self._mesh.nodes[self._node]
        text = f',"sourceNodeId":"{node}","sourceAgentId":"{mesh.agents[row.source]}"'
        if row.to_node:
            text += f',"toNodeId":"{mesh.nodes[row.to_node - 1]}"'
        if row.to_agent:
            text += f',"toAgentId":"{mesh.agents[row.to_agent - 1]}"'
        return text + f',"kind":"{TEMPLATES[row.template].kind}"'

    def _tail_texts(self, rows: Records) -> tuple[pa.Array, IntArray]:
        """The JSON after `expiresAt`, and the size of the inline payload."""
        keys = _combine_keys(rows, "template", "attempt", "payload", "blob", "capability")
        # A text that cannot be shared gets a new negative key, which is not cached.
        singular = np.flatnonzero(_HAS_OWN_TEXT[rows["template"]])
        keys[singular] = -1 - np.arange(len(singular))
        made, index = _make_once_per_key(keys, rows, self._tail_cache, self._tail_text)
        texts = pa.array([text for text, _ in made], pa.string())
        sizes = np.array([size for _, size in made], dtype=np.int64)
        return texts.take(pa.array(index)), sizes[index]

    def _tail_text(self, row: RecordRow) -> SizedText:
        template = TEMPLATES[row.template]
        payload, size = self._payload_text(row, template)
        text = f',"attempt":{row.attempt}' if row.attempt != 1 else ""
        text += ',"offer":1' if template.offer else ""
        text += f',"payload":{payload}' if payload else ""
        text += (
            self._blob_field(row) + self._task_field(row, template) + _trace_field(row, template)
        )
        return text + "}", size

    def _payload_text(self, row: RecordRow, template: EventTemplate) -> SizedText:
        if row.payload:
            payload = self._mesh.payloads[row.payload - 1]
            return payload.text, payload.size
        if template.status:
            text = _receipt_text(row, template)
        elif template.kind == "dead_letter":
            text = f'{{"reason":"{template.reason}","attempts":{row.number}'
            text += f',"pairSeq":{row.other}}}' if row.other else "}"
        elif template.signal:
            text = f'{{"signal":"{template.signal}"{self._closed_pair(row, template)}}}'
        else:
            return "", 0
        return text, len(text)

    def _closed_pair(self, row: RecordRow, template: EventTemplate) -> str:
        if template.signal != "pair_closed":
            return ""
        agents = self._mesh.agents
        ends = f',"fromAgent":"{agents[row.source]}","toAgent":"{agents[row.to_agent - 1]}"'
        return f'{ends},"through":{row.number}'

    def _blob_field(self, row: RecordRow) -> str:
        if not row.blob:
            return ""
        blob = self._mesh.blobs[row.blob - 1]
        ref = f'"digest":"{blob.digest}","size":{blob.size},"keys":{wrapped_key(blob)}'
        return f',"payloadRef":{{{ref}}}'

    def _task_field(self, row: RecordRow, template: EventTemplate) -> str:
        if row.capability:
            capability = self._mesh.capabilities[row.capability - 1]
            fields = f'"capabilityId":"{capability.id}","capabilityVersion":"{capability.version}"'
            fields += f',"delegationSkillVersion":"{capability.delegation}"'
            fields += f',"executorSkillVersion":"{capability.executor}"'
            fields += f',"taskType":"{capability.type}"'
        elif template.kind == "task_accept":
            fields = f'"etaAt":{row.other},"etaSeconds":{row.number}'
        elif template.kind == "task_update":
            fields = f'"progress":{row.number / 1000}'
        elif template.failure:
            fields = f'"failureClass":"{template.failure}"'
        else:
            return ""
        return f',"task":{{{fields}}}'

    def event_columns(
        self, rows: Records, seqs: IntArray, previous: IntArray, sizes: IntArray, corr: pa.Array
    ) -> dict[str, Any]:
        """All archive columns, except those of the chain."""
        mesh = self._mesh
        template = rows["template"].astype(np.int64)
        eta = np.isin(template, (SynthEvent.ACCEPTED_TASK, SynthEvent.TASK_ACCEPT))
        dead = np.isin(
            template, (SynthEvent.DEAD_EXPIRED, SynthEvent.DEAD_REFUSED, SynthEvent.DEAD_UNROUTED)
        )
        capabilities = [None, *mesh.capabilities]
        cap = rows["capability"].astype(np.int64)
        blob = rows["blob"].astype(np.int64)
        return {
            "seq": seqs,
            "event_id": id_bytes(rows["id"]),
            "kind": _dictionary_column([t.kind for t in TEMPLATES], template),
            "source_agent": _dictionary_column(mesh.agents, rows["source"]),
            "to_node": _dictionary_column([None, *mesh.nodes], rows["to_node"]),
            "to_agent": _dictionary_column([None, *mesh.agents], rows["to_agent"]),
            "pair_seq": rows["pair_seq"],
            "pair_base": np.ones(len(rows), dtype=np.int64),
            "prev_seq_to": previous,
            "corr_id": _null_unless(corr, rows["corr"][:, 0] != 0),
            "ref_id": _null_unless(id_bytes(rows["ref"]), rows["ref"][:, 0] != 0),
            "causation_id": _null_unless(id_bytes(rows["causation"]), rows["causation"][:, 0] != 0),
            "origin_id": pa.nulls(len(rows), pa.binary()),
            "created_at": record_times(rows) + START,
            "expires_at": _masked_array(rows["expires"] != 0, rows["expires"] + START),
            "attempt": rows["attempt"].astype(np.int32),
            "priority": np.zeros(len(rows), dtype=np.int32),
            "offer": np.array([t.offer for t in TEMPLATES])[template],
            "payload_size": sizes.astype(np.int32),
            "blob_digest": _dictionary_column([None, *(b.digest for b in mesh.blobs)], blob),
            "blob_size": _masked_array(
                blob != 0, np.array([0, *(b.size for b in mesh.blobs)])[blob]
            ),
            "status": _dictionary_column([t.status for t in TEMPLATES], template),
            "outcome": _dictionary_column([t.outcome for t in TEMPLATES], template),
            "reason": _dictionary_column([t.reason for t in TEMPLATES], template),
            "eta_at": _masked_array(eta, rows["other"]),
            "eta_seconds": _masked_array(eta, rows["number"]),
            "dead_attempts": _masked_array(dead, rows["number"].astype(np.int32)),
            "signal": _dictionary_column([t.signal for t in TEMPLATES], template),
            "through": _masked_array(template == SynthEvent.SETTLED, rows["number"]),
            "capability_id": _dictionary_column([c and c.id for c in capabilities], cap),
            "capability_version": _dictionary_column([c and c.version for c in capabilities], cap),
            "delegation_version": _dictionary_column(
                [c and c.delegation for c in capabilities], cap
            ),
            "executor_version": _dictionary_column([c and c.executor for c in capabilities], cap),
            "task_type": _dictionary_column([c and c.type for c in capabilities], cap),
            "progress": _masked_array(template == SynthEvent.TASK_UPDATE, rows["number"] / 1000),
            "failure_class": _dictionary_column([t.failure for t in TEMPLATES], template),
            "route_decision": _dictionary_column([t.route for t in TEMPLATES], template),
            "policy_version": _dictionary_column(
                [t.route and _POLICY_VERSION for t in TEMPLATES], template
            ),
            "traceparent": _traceparent_column(rows),
        }


def _receipt_text(row: RecordRow, template: EventTemplate) -> str:
    text = f'{{"status":"{template.status}"'
    text += f',"reason":"{template.reason}"' if template.reason else ""
    text += f',"outcome":"{template.outcome}"' if template.outcome else ""
    if row.other:
        text += f',"etaAt":{row.other},"etaSeconds":{row.number},"plan":"{_PLAN_TEXT}"'
    return text + "}"


def _trace_field(row: RecordRow, template: EventTemplate) -> str:
    if template.route is None:
        return ""
    fields = f'"attempt":{row.attempt},' if row.attempt != 1 else ""
    fields += f'"routeDecision":"{template.route}","policyVersion":{_POLICY_VERSION}'
    if row.capability:
        fields += f',"traceparent":"{_format_traceparent(row.id)}"'
    return f',"trace":{{{fields}}}'


def _format_traceparent(words: list[int]) -> str:
    return f"00-{words[0]:016x}{words[1]:016x}-{words[1]:016x}-01"


def _traceparent_column(rows: Records) -> pa.Array:
    """Trace headers of the traced events: routed tasks that name a capability."""
    routed = np.array([t.route is not None for t in TEMPLATES])[rows["template"]]
    traced = np.flatnonzero((rows["capability"] != 0) & routed)
    texts = pa.array(
        [_format_traceparent(words) for words in rows["id"][traced].tolist()], pa.string()
    )
    index = np.full(len(rows), -1, dtype=np.int64)
    index[traced] = np.arange(len(traced))
    return texts.take(pa.array(index, mask=index < 0))


def _make_once_per_key(
    keys: IntArray, rows: Records, known: dict[int, Made], make: Callable[[RecordRow], Made]
) -> tuple[list[Made], IntArray]:
    """Make one value for each distinct key; returns the values, and the index of each row's value.

    Values are cached in `known`, except for negative keys.
    """
    unique, first, index = np.unique(keys, return_index=True, return_inverse=True)
    made = []
    for key, row in zip(unique.tolist(), rows[first].tolist(), strict=True):
        if (value := known.get(key)) is None:
            value = make(RecordRow._make(row))
            if key >= 0:
                known[key] = value
        made.append(value)
    return made, index


def _combine_keys(rows: Records, *names: str) -> IntArray:
    keys = np.zeros(len(rows), dtype=np.int64)
    for name in names:
        keys = keys << 12 | rows[name]
    return keys


def _number_texts(values: IntArray) -> pa.Array:
    return pa.array(np.ascontiguousarray(values)).cast(pa.string())


def _number_fields(name: str, values: IntArray) -> pa.Array:
    """`,"name":value`, or an empty text where the value is 0."""
    text = pc.binary_join_element_wise(f',"{name}":', _number_texts(values), "")
    return pc.if_else(pa.array(values != 0), text, "")


def _id_fields(name: str, texts: pa.Array | None, ids: IdWords) -> pa.Array:
    present = ids[:, 0] != 0
    if not present.any():
        return pa.repeat("", len(ids))
    texts = id_texts(ids) if texts is None else texts
    text = pc.binary_join_element_wise(f',"{name}":"', texts, '"', "")
    return text if present.all() else pc.if_else(pa.array(present), text, "")


def _raw_id_bytes(ids: IdWords) -> NDArray[np.uint8]:
    return np.ascontiguousarray(ids).astype(">u8").view(np.uint8).reshape(-1, 16)


def id_texts(ids: IdWords) -> pa.Array:
    """The text of each id, 36 characters."""
    text = np.full((len(ids), 36), ord("-"), dtype=np.uint8)
    digits = _HEX_DIGITS[_raw_id_bytes(ids)].view(np.uint8)
    for dashes, (start, end) in enumerate(_UUID_PARTS):
        text[:, start + dashes : end + dashes] = digits[:, start:end]
    return _fixed_width_array(text, pa.string())


def id_bytes(ids: IdWords) -> pa.Array:
    return _fixed_width_array(_raw_id_bytes(ids), pa.binary())


def _fixed_width_array(values: NDArray[np.uint8], type: pa.DataType) -> pa.Array:
    """Build an array of strings of equal length directly from their bytes."""
    count, width = values.shape
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(
        type, count, [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(values))]
    )


def fixed_width_binaries(values: list[bytes], width: int) -> pa.Array:
    """Build an array of byte strings of equal length."""
    return _fixed_width_array(
        np.frombuffer(b"".join(values), dtype=np.uint8).reshape(-1, width), pa.binary()
    )


def _null_unless(values: pa.Array, present: NDArray[np.bool_]) -> pa.Array:
    if not present.any():
        return pa.nulls(len(values), values.type)
    return values if present.all() else pc.if_else(pa.array(present), values, None)


def _masked_array(present: NDArray[np.bool_], values: NDArray[np.generic]) -> pa.Array:
    return pa.array(np.ascontiguousarray(values), mask=~present)


def _dictionary_column(values: list[Any], index: IntArray) -> pa.Array:
    """Pick `values[index]` for each row, as a dictionary-encoded array."""
    known = list(dict.fromkeys(value for value in values if value is not None))
    code_of = {value: code for code, value in enumerate(known)}
    codes = np.array([-1 if v is None else code_of[v] for v in values], dtype=np.int32)[index]
    indices = pa.array(codes, mask=codes < 0)
    return pa.DictionaryArray.from_arrays(indices, pa.array(known, pa.string()))


def event_table(columns: dict[str, Any]) -> pa.Table:
    """Build a table in the column order of the archive schema."""
    arrays = [_as_array(columns[field.name], field.type) for field in EVENT_SCHEMA]
    fields = [f.with_type(a.type) for f, a in zip(EVENT_SCHEMA, arrays, strict=True)]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _as_array(values: Any, type: pa.DataType) -> pa.Array:
    if isinstance(values, pa.Array):
        return values
    return pa.array(np.ascontiguousarray(values), type)
