"""Records to the very bytes of their events, and to the columns of the archive.

What a gateway does one event at a time is done here for a whole segment: the JSON of all its events
is put together from columns of text. It is the JSON `events.encode` would write, byte for byte.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gatepost.archive.schema import EVENTS
from gatepost.pipeline.synth.records import TEMPLATES, Records, T, Template, times_of
from gatepost.pipeline.synth.world import START, Ints, Words, World, wrapped_key

# The two digits of each byte, as one number.
_HEX = np.frombuffer(b"".join(b"%02x" % n for n in range(256)), dtype=np.uint16)
# Where the digits of an id go among its 36 characters: dashes stand between.
_PARTS = ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))
# Sorts of event whose text holds numbers of their own, and is not shared with others.
_SINGULAR = np.zeros(len(TEMPLATES), dtype=bool)
_SINGULAR[[T.TASK, T.TASK_LOCAL, T.TASK_UNROUTED, T.TASK_ACCEPT, T.TASK_UPDATE]] = True
_SINGULAR[[T.ACCEPTED_TASK, T.DEAD_EXPIRED, T.DEAD_REFUSED, T.DEAD_UNROUTED, T.SETTLED]] = True
Made = TypeVar("Made")

_POLICY: Final = "3"
_PLAN: Final = "accepted into the queue"


class Row(NamedTuple):
    """One record, as Python reads it fastest."""

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


Tail = tuple[str, int]


class Encoder:
    """For the events of one node."""

    def __init__(self, world: World, node: int) -> None:
        self._world = world
        self._node = node
        # Texts that many events share, by what tells them apart.
        self._ends: dict[int, str] = {}
        self._tails: dict[int, Tail] = {}

    def bodies(
        self, rows: Records, seqs: Ints, previous: Ints, corr: pa.Array
    ) -> tuple[pa.Array, Ints]:
        """Every event as it travels, and the size of its inline payload."""
        tails, sizes = self._all_tails(rows)
        text = pc.binary_join_element_wise(
            '{"eventId":"',
            id_texts(rows["id"]),
            '","seq":',
            _numbers(seqs),
            _number_field("pairSeq", rows["pair_seq"]),
            _number_field("prevSeqTo", previous),
            self._all_ends(rows),
            _id_field("corrId", corr, rows["corr"]),
            _id_field("refEventId", None, rows["ref"]),
            _id_field("causationId", None, rows["causation"]),
            ',"createdAt":',
            _numbers(times_of(rows) + START),
            _number_field("expiresAt", np.where(rows["expires"], rows["expires"] + START, 0)),
            tails,
            "",
        )
        return text, sizes

    def _all_ends(self, rows: Records) -> pa.Array:
        """From whom, to whom, and the kind."""
        keys = _combined(rows, "source", "to_node", "to_agent", "template")
        made, place = _once_each(keys, rows, self._ends, self._end)
        return pa.array(made, pa.string()).take(pa.array(place))

    def _end(self, row: Row) -> str:
        world, node = self._world, self._world.nodes[self._node]
        text = f',"sourceNodeId":"{node}","sourceAgentId":"{world.agents[row.source]}"'
        if row.to_node:
            text += f',"toNodeId":"{world.nodes[row.to_node - 1]}"'
        if row.to_agent:
            text += f',"toAgentId":"{world.agents[row.to_agent - 1]}"'
        return text + f',"kind":"{TEMPLATES[row.template].kind}"'

    def _all_tails(self, rows: Records) -> tuple[pa.Array, Ints]:
        """Everything behind `expiresAt`, and the size of the inline payload."""
        keys = _combined(rows, "template", "attempt", "payload", "blob", "capability")
        # What is singular shares nothing: it gets a key of its own, which nobody remembers.
        singular = np.flatnonzero(_SINGULAR[rows["template"]])
        keys[singular] = -1 - np.arange(len(singular))
        made, place = _once_each(keys, rows, self._tails, self._tail)
        texts = pa.array([text for text, _ in made], pa.string())
        sizes = np.array([size for _, size in made], dtype=np.int64)
        return texts.take(pa.array(place)), sizes[place]

    def _tail(self, row: Row) -> Tail:
        template = TEMPLATES[row.template]
        payload, size = self._payload(row, template)
        text = f',"attempt":{row.attempt}' if row.attempt != 1 else ""
        text += ',"offer":true' if template.offer else ""
        text += f',"payload":{payload}' if payload else ""
        text += self._blob(row) + self._task(row, template) + _trace(row, template)
        return text + "}", size

    def _payload(self, row: Row, template: Template) -> Tail:
        if row.payload:
            sealed = self._world.payloads[row.payload - 1]
            return sealed.text, sealed.size
        if template.status:
            text = _receipt(row, template)
        elif template.kind == "dead_letter":
            text = f'{{"reason":"{template.reason}","attempts":{row.number}'
            text += f',"pairSeq":{row.other}}}' if row.other else "}"
        elif template.signal:
            text = f'{{"signal":"{template.signal}"{self._closed_pair(row, template)}}}'
        else:
            return "", 0
        return text, len(text)

    def _closed_pair(self, row: Row, template: Template) -> str:
        if template.signal != "pair_closed":
            return ""
        agents = self._world.agents
        ends = f',"fromAgent":"{agents[row.source]}","toAgent":"{agents[row.to_agent - 1]}"'
        return f'{ends},"through":{row.number}'

    def _blob(self, row: Row) -> str:
        if not row.blob:
            return ""
        blob = self._world.blobs[row.blob - 1]
        ref = f'"digest":"{blob.digest}","size":{blob.size},"keys":{wrapped_key(blob)}'
        return f',"payloadRef":{{{ref}}}'

    def _task(self, row: Row, template: Template) -> str:
        if row.capability:
            it = self._world.capabilities[row.capability - 1]
            says = f'"capabilityId":"{it.id}","capabilityVersion":"{it.version}"'
            says += f',"delegationSkillVersion":"{it.delegation}"'
            says += f',"executorSkillVersion":"{it.executor}","taskType":"{it.type}"'
        elif template.kind == "task_accept":
            says = f'"etaAt":{row.other},"etaSeconds":{row.number}'
        elif template.kind == "task_update":
            says = f'"progress":{row.number / 1000}'
        elif template.failure:
            says = f'"failureClass":"{template.failure}"'
        else:
            return ""
        return f',"task":{{{says}}}'

    def columns(
        self, rows: Records, seqs: Ints, previous: Ints, sizes: Ints, corr: pa.Array
    ) -> dict[str, Any]:
        """All columns but those of the chain."""
        world = self._world
        template = rows["template"].astype(np.int64)
        eta = np.isin(template, (T.ACCEPTED_TASK, T.TASK_ACCEPT))
        dead = np.isin(template, (T.DEAD_EXPIRED, T.DEAD_REFUSED, T.DEAD_UNROUTED))
        capabilities = [None, *world.capabilities]
        cap = rows["capability"].astype(np.int64)
        blob = rows["blob"].astype(np.int64)
        return {
            "seq": seqs,
            "event_id": id_bytes(rows["id"]),
            "kind": _chosen([t.kind for t in TEMPLATES], template),
            "source_agent": _chosen(world.agents, rows["source"]),
            "to_node": _chosen([None, *world.nodes], rows["to_node"]),
            "to_agent": _chosen([None, *world.agents], rows["to_agent"]),
            "pair_seq": rows["pair_seq"],
            "pair_base": np.ones(len(rows), dtype=np.int64),
            "prev_seq_to": previous,
            "corr_id": _nullable(corr, rows["corr"][:, 0] != 0),
            "ref_id": _nullable(id_bytes(rows["ref"]), rows["ref"][:, 0] != 0),
            "causation_id": _nullable(id_bytes(rows["causation"]), rows["causation"][:, 0] != 0),
            "created_at": times_of(rows) + START,
            "expires_at": _where(rows["expires"] != 0, rows["expires"] + START),
            "attempt": rows["attempt"].astype(np.int32),
            "priority": np.zeros(len(rows), dtype=np.int32),
            "offer": np.array([t.offer for t in TEMPLATES])[template],
            "payload_size": sizes.astype(np.int32),
            "blob_digest": _chosen([None, *(b.digest for b in world.blobs)], blob),
            "blob_size": _where(blob != 0, np.array([0, *(b.size for b in world.blobs)])[blob]),
            "status": _chosen([t.status for t in TEMPLATES], template),
            "outcome": _chosen([t.outcome for t in TEMPLATES], template),
            "reason": _chosen([t.reason for t in TEMPLATES], template),
            "eta_at": _where(eta, rows["other"]),
            "eta_seconds": _where(eta, rows["number"]),
            "dead_attempts": _where(dead, rows["number"].astype(np.int32)),
            "signal": _chosen([t.signal for t in TEMPLATES], template),
            "through": _where(template == T.SETTLED, rows["number"]),
            "capability_id": _chosen([c and c.id for c in capabilities], cap),
            "capability_version": _chosen([c and c.version for c in capabilities], cap),
            "delegation_version": _chosen([c and c.delegation for c in capabilities], cap),
            "executor_version": _chosen([c and c.executor for c in capabilities], cap),
            "task_type": _chosen([c and c.type for c in capabilities], cap),
            "progress": _where(template == T.TASK_UPDATE, rows["number"] / 1000),
            "failure_class": _chosen([t.failure for t in TEMPLATES], template),
            "route_decision": _chosen([t.route for t in TEMPLATES], template),
            "policy_version": _chosen([t.route and _POLICY for t in TEMPLATES], template),
            "traceparent": _traceparents(rows),
        }


def _receipt(row: Row, template: Template) -> str:
    text = f'{{"status":"{template.status}"'
    text += f',"reason":"{template.reason}"' if template.reason else ""
    text += f',"outcome":"{template.outcome}"' if template.outcome else ""
    if row.other:
        text += f',"etaAt":{row.other},"etaSeconds":{row.number},"plan":"{_PLAN}"'
    return text + "}"


def _trace(row: Row, template: Template) -> str:
    if template.route is None:
        return ""
    says = f'"attempt":{row.attempt},' if row.attempt != 1 else ""
    says += f'"routeDecision":"{template.route}","policyVersion":{_POLICY}'
    if row.capability:
        says += f',"traceparent":"{_traceparent(row.id)}"'
    return f',"trace":{{{says}}}'


def _traceparent(words: list[int]) -> str:
    return f"00-{words[0]:016x}{words[1]:016x}-{words[1]:016x}-01"


def _traceparents(rows: Records) -> pa.Array:
    """Tasks are traced: those that name a capability and were routed."""
    routed = np.array([t.route is not None for t in TEMPLATES])[rows["template"]]
    traced = np.flatnonzero((rows["capability"] != 0) & routed)
    texts = pa.array([_traceparent(words) for words in rows["id"][traced].tolist()], pa.string())
    index = np.full(len(rows), -1, dtype=np.int64)
    index[traced] = np.arange(len(traced))
    return texts.take(pa.array(index, mask=index < 0))


def _once_each(
    keys: Ints, rows: Records, known: dict[int, Made], make: Callable[[Row], Made]
) -> tuple[list[Made], Ints]:
    """What is made once for each key, and which of it is each row's. Keys below 0 are forgotten."""
    unique, first, place = np.unique(keys, return_index=True, return_inverse=True)
    made = []
    for key, row in zip(unique.tolist(), rows[first].tolist(), strict=True):
        if (one := known.get(key)) is None:
            one = make(Row._make(row))
            if key >= 0:
                known[key] = one
        made.append(one)
    return made, place


def _combined(rows: Records, *names: str) -> Ints:
    keys = np.zeros(len(rows), dtype=np.int64)
    for name in names:
        keys = keys << 12 | rows[name]
    return keys


def _numbers(values: Ints) -> pa.Array:
    return pa.array(np.ascontiguousarray(values)).cast(pa.string())


def _number_field(name: str, values: Ints) -> pa.Array:
    """`,"name":value`, or nothing where it is 0."""
    text = pc.binary_join_element_wise(f',"{name}":', _numbers(values), "")
    return pc.if_else(pa.array(values != 0), text, "")


def _id_field(name: str, texts: pa.Array | None, ids: Words) -> pa.Array:
    there = ids[:, 0] != 0
    if not there.any():
        return pa.repeat("", len(ids))
    texts = id_texts(ids) if texts is None else texts
    text = pc.binary_join_element_wise(f',"{name}":"', texts, '"', "")
    return text if there.all() else pc.if_else(pa.array(there), text, "")


def _raw(ids: Words) -> NDArray[np.uint8]:
    return np.ascontiguousarray(ids).astype(">u8").view(np.uint8).reshape(-1, 16)


def id_texts(ids: Words) -> pa.Array:
    """The 36 characters of each id."""
    text = np.full((len(ids), 36), ord("-"), dtype=np.uint8)
    digits = _HEX[_raw(ids)].view(np.uint8)
    for dashes, (start, end) in enumerate(_PARTS):
        text[:, start + dashes : end + dashes] = digits[:, start:end]
    return _fixed(text, pa.string())


def id_bytes(ids: Words) -> pa.Array:
    return _fixed(_raw(ids), pa.binary())


def _fixed(values: NDArray[np.uint8], type: pa.DataType) -> pa.Array:
    """An array of strings of one length, straight from their bytes."""
    count, width = values.shape
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(
        type, count, [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(values))]
    )


def binaries(values: list[bytes], width: int) -> pa.Array:
    """Byte strings of one length."""
    return _fixed(np.frombuffer(b"".join(values), dtype=np.uint8).reshape(-1, width), pa.binary())


def _nullable(values: pa.Array, there: NDArray[np.bool_]) -> pa.Array:
    if not there.any():
        return pa.nulls(len(values), values.type)
    return values if there.all() else pc.if_else(pa.array(there), values, None)


def _where(there: NDArray[np.bool_], values: NDArray[Any]) -> pa.Array:
    return pa.array(np.ascontiguousarray(values), mask=~there)


def _chosen(values: list[Any], index: Ints) -> pa.Array:
    """One of few values for each row, kept as a dictionary."""
    known = list(dict.fromkeys(value for value in values if value is not None))
    places = {value: place for place, value in enumerate(known)}
    codes = np.array([-1 if v is None else places[v] for v in values], dtype=np.int32)[index]
    indices = pa.array(codes, mask=codes < 0)
    return pa.DictionaryArray.from_arrays(indices, pa.array(known, pa.string()))


def table(columns: dict[str, Any]) -> pa.Table:
    arrays = [_column(columns[field.name], field.type) for field in EVENTS]
    fields = [f.with_type(a.type) for f, a in zip(EVENTS, arrays, strict=True)]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _column(values: Any, type: pa.DataType) -> pa.Array:
    if isinstance(values, pa.Array):
        return values
    return pa.array(np.ascontiguousarray(values), type)
