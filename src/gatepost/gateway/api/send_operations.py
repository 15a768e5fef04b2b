"""Operations on messages between agents: send them, and await their receipts."""

import asyncio

from msgspec import UNSET, UnsetType

from gatepost.archive.service.archived_messages import archived_status
from gatepost.core.gateway_core import Core, TransactionPlan
from gatepost.core.wait_registry import WaitRegistry
from gatepost.delivery.blob_records import blob_fingerprint
from gatepost.delivery.send_request import check_send, fingerprint_payload, fingerprint_send
from gatepost.delivery.sent_messages import is_reached
from gatepost.errors import GatepostError, PayloadTooLarge, UnknownMessage
from gatepost.events import parse_event_id
from gatepost.events.json_payload import check_json_text
from gatepost.journal import Tx
from gatepost.wire.operations import (
    AnyAnswer,
    Await,
    Awaited,
    Failure,
    NewSend,
    Send,
    SendCheck,
    SendResults,
    Sent,
)


class SendOperations:
    """Sends are one transaction, unless a payload has to be stored as a blob first."""

    def __init__(self, core: Core, waits: WaitRegistry) -> None:
        self._core = core
        self._waits = waits
        self._max_inline_bytes = core.settings.limits.max_payload_inline

    def plan_send(self, op: Send) -> TransactionPlan | None:
        for new in op.messages:
            check_send(new)
            if not isinstance(new.payload, UnsetType):
                check_json_text(bytes(new.payload))
        if any(self._is_large(new) for new in op.messages):
            return None
        return self._build_send_plan(op, [fingerprint_payload(new) for new in op.messages])

    async def perform_send(self, op: Send) -> AnyAnswer:
        """Store payloads too large to travel inline as blobs, then send."""
        contents = [fingerprint_payload(new) for new in op.messages]
        for new in op.messages:
            if self._is_large(new):
                payload, new.payload = bytes(new.payload), UNSET  # type: ignore[arg-type]
                # Counts as an upload, and remains one if the message is refused.
                blob = await self._core.keep_payload([payload], new.from_agent)
                new.payload_ref = blob.digest
        return await self._core.commit(self._build_send_plan(op, contents))

    def _is_large(self, new: NewSend) -> bool:
        if isinstance(new.payload, UnsetType):
            return False
        return memoryview(new.payload).nbytes > self._max_inline_bytes

    def _build_send_plan(self, op: Send, contents: list[bytes | None]) -> TransactionPlan:
        if self._core.telemetry is not None:
            self._core.telemetry.begin_sends(op.messages)
        sends = list(zip(op.messages, contents, strict=True))
        return lambda tx: SendResults(re=op.id, results=self._send_together(tx, sends))

    def _send_together(self, tx: Tx, sends: list[tuple[NewSend, bytes | None]]) -> list[Sent]:
        """Send all in one savepoint; if one fails, roll back and send them one by one."""
        mark = tx.begin_operation()
        try:
            sent = [self._send(tx, *each) for each in sends]
            self._core.mirror.add_copies(tx, zip((new for new, _ in sends), sent, strict=True))
        except GatepostError:
            tx.undo_operation(mark)
            return [self._send_one(tx, *each) for each in sends]
        tx.keep_operation()
        return sent

    def _send(self, tx: Tx, new: NewSend, content: bytes | None) -> Sent:
        resolve = self._core.aliases.resolve_name
        if new.to_agent:
            new.to_agent = resolve(tx, new.to_agent)
        elif not isinstance(new.to_agents, str | UnsetType):
            new.to_agents = [resolve(tx, agent) for agent in new.to_agents]
        if content is None:
            content = blob_fingerprint(tx, str(new.payload_ref))
        return self._core.coordinator.send(tx, new, fingerprint_send(new, content))

    def _send_one(self, tx: Tx, new: NewSend, content: bytes | None) -> Sent:
        mark = tx.begin_operation()
        try:
            sent = self._send(tx, new, content)
            self._core.mirror.add_copies(tx, [(new, sent)])
        except GatepostError as error:
            tx.undo_operation(mark)
            if self._core.telemetry is not None:
                self._core.telemetry.fail_send(new, error.code)
            id = "" if isinstance(new.event_id, UnsetType) else new.event_id
            return Sent(id, error=Failure.from_error(error, id))
        tx.keep_operation()
        return sent

    async def check_sends(self, check: SendCheck) -> list[Sent]:
        """Answer as if each message was sent, without sending any."""
        return await self._core.commit(
            lambda tx: [
                self._check_send(tx, new, check.left_out.get(str(index), 0))
                for index, new in enumerate(check.messages)
            ]
        )

    def _check_send(self, tx: Tx, new: NewSend, left_out: int) -> Sent:
        limit = self._core.settings.limits.max_blob_bytes
        mark = tx.begin_operation()
        try:
            if left_out > limit:
                raise PayloadTooLarge(f"it has {left_out} bytes; at most {limit} are taken")
            check_send(new)
            check_json_text(bytes(new.payload) if not isinstance(new.payload, UnsetType) else b"0")
            return self._send(tx, new, fingerprint_payload(new))
        except GatepostError as error:
            return Sent("", error=Failure.from_error(error, ""))
        finally:
            tx.undo_operation(mark)

    async def perform_await(self, op: Await) -> AnyAnswer:
        try:
            sent = await self._read_status(op)
        except UnknownMessage:
            found = await self._core.archive.find_events(parse_event_id(op.event_id))
            sent = archived_status(op.event_id, found.events if found else [])
        return Awaited(re=op.id, result=sent)

    async def _read_status(self, op: Await) -> Sent:
        if op.wait_secs:
            return await self._wait_until_reached(op.event_id, op.wait_secs, op.until)
        sent_messages = self._core.delivery.sent
        return await self._core.read(lambda tx: sent_messages.status(tx, op.event_id))

    async def wait_for_receipts(self, sent: Sent, until: str, secs: float) -> Sent:
        """Return the state of a message and its copies once it is reached, or time is up."""
        if sent.error is not None:
            return sent
        if not sent.copies:
            found = await self._wait_until_reached(sent.event_id, secs, until)
            found.to_agent = sent.to_agent
            return found
        each = (self.wait_for_receipts(copy, until, secs) for copy in sent.copies)
        sent.copies = list(await asyncio.gather(*each))
        return sent

    async def _wait_until_reached(self, id: str, secs: float, until: str) -> Sent:
        sent_messages = self._core.delivery.sent
        reached: asyncio.Future[Sent] = asyncio.get_running_loop().create_future()

        def resolve_wait(sent: Sent, error: GatepostError | None) -> None:
            if not reached.done():
                reached.set_result(sent)

        try:
            sent = await self._core.commit(
                lambda tx: sent_messages.wait(tx, id, resolve_wait, until)
            )
            if is_reached(sent, until):
                reached.cancel()
                return sent
            if await self._waits.wait_for(reached, secs):
                return reached.result()
        finally:
            if not reached.done():
                self._core.submit(lambda tx: sent_messages.stop_waiting(id, resolve_wait))
        # The state may have changed meanwhile, although it is not the awaited one.
        return await self._core.read(lambda tx: sent_messages.status(tx, id))
