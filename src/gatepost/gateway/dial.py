"""Dialling peers: keeps a connection to each selected gateway, and reopens it when it ends."""

import asyncio
import logging
import random
from collections.abc import Coroutine
from typing import Any

import msgspec
from msgspec import Struct

from gatepost.access.auth_messages import ExchangeAnswer
from gatepost.access.node_invites import issuer_fingerprint
from gatepost.errors import DeadlineExceeded, GatepostError, Revoked, RoomViolation, Unavailable
from gatepost.events import fingerprint_key
from gatepost.gateway.connection import Connection
from gatepost.gateway.knocking import BROKEN, ClientWire, Host, Knocker, OurselvesError, http_url
from gatepost.gateway.pipes import Pipes
from gatepost.gateway.room import RoomKeeper
from gatepost.journal import Tx
from gatepost.room import SharedRoom

log = logging.getLogger(__name__)

_MOST = 8
_MOST_OTHERS = 256
_FIRST_SECS = 0.1
_LONGEST_SECS = 15.0
_SETTLED_SECS = 10.0
_SYNC_SECS = 10.0
_LOOK_SECS = 1.0
_SEEDS = "room_seeds"


class Seed(Struct, frozen=True):
    """An address to dial. `fingerprint` is the expected key; None accepts any room member."""

    url: str
    fingerprint: str | None = None


Joined = asyncio.Future[Host]


class Dialer:
    """Keeps connections to peers. `problems`: address → why it is not connected."""

    def __init__(self, replica: RoomKeeper, pipes: Pipes) -> None:
        self._keeper = replica
        self._pipes = pipes
        self._core = replica.core
        self._knocker = Knocker(replica.core, replica.known)
        self._calls: dict[str, asyncio.Task[None]] = {}
        self.problems: dict[str, str] = {}

    async def run(self) -> None:
        """Dial until cancelled."""
        try:
            while True:
                if self._keeper.room is not None:
                    self._call(await self._seeds())
                await self._keeper.changed_since(self._keeper.changes, _LOOK_SECS)
        finally:
            for call in self._calls.values():
                call.cancel()
            await asyncio.gather(*self._calls.values(), return_exceptions=True)
            await self._knocker.close()

    async def has_seeds(self) -> bool:
        return self._keeper.room is not None and bool(await self._seeds())

    async def join(self, url: str, token: str) -> Host:
        """Join a room with an invite, and keep the connection.

        A member may use another member's invite; it then gets the tier of that invite.
        """
        expected = issuer_fingerprint(token)
        if not self._keeper.known.has_member(expected):
            await self._keeper.check_may_join()
        joined: Joined = asyncio.get_running_loop().create_future()
        call = asyncio.create_task(self._join(Seed(url, expected), token, joined))
        if (before := self._calls.get(url)) is not None:
            before.cancel()
        self._calls[url] = call
        return await joined

    # -- choosing addresses

    async def _seeds(self) -> dict[str, Seed]:
        stored = await self._core.read(_stored)
        named = [Seed(url) for url in self._core.settings.room.seeds]
        return {seed.url: seed for seed in (*named, *self._members(), *stored)}

    def _members(self) -> list[Seed]:
        """Return backbone nodes, a different choice per gateway, and nodes we have mail for."""
        own, mail_for = self._core.node.key.public, self._core.messages.sender.nodes
        backbone, others = [], []
        for member in self._keeper.current.effective.nodes.values():
            if member.public_key == own or not member.record.endpoint_ws:
                continue
            seed = Seed(http_url(member.record.endpoint_ws), fingerprint_key(member.public_key))
            if member.is_backbone:
                backbone.append(seed)
            elif member.id in mail_for:
                others.append(seed)
        shuffle = random.Random(self._core.node.id)
        return sorted(backbone, key=lambda seed: shuffle.random())[:_MOST] + others[:_MOST_OTHERS]

    def _call(self, seeds: dict[str, Seed]) -> None:
        for url in self._calls.keys() - seeds.keys():
            self._calls.pop(url).cancel()
            self.problems.pop(url, None)
        for url, seed in seeds.items():
            if url not in self._calls:
                self._calls[url] = asyncio.create_task(self._stay(seed))

    # -- one connection

    async def _join(self, seed: Seed, token: str, joined: Joined) -> None:
        try:
            answer = await self._knocker.with_invite(seed.url, token)
            await self._visit(seed, answer, joined)
        except asyncio.CancelledError:
            joined.cancel()
            raise
        except Exception as error:
            if not joined.done():
                self._calls.pop(seed.url, None)
                joined.set_exception(_said(seed.url, error))
                return
        await self._stay(seed)

    async def _stay(self, seed: Seed) -> None:
        wait = _FIRST_SECS
        while True:
            began = asyncio.get_running_loop().time()
            try:
                answer = await self._knocker.with_proof(seed.url, seed.fingerprint)
                await self._visit(seed, answer)
            except OurselvesError:
                return
            except Exception as error:
                self._report(seed.url, error)
                wait = _LONGEST_SECS if isinstance(error, Revoked) else wait
            was_stable = asyncio.get_running_loop().time() - began > _SETTLED_SECS
            wait = _FIRST_SECS if was_stable else min(wait * 2, _LONGEST_SECS)
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))

    async def _visit(
        self, seed: Seed, answer: ExchangeAnswer, joined: Joined | None = None
    ) -> None:
        async with self._knocker.opened(seed.url, answer) as (socket, peer):
            self._keeper.check_welcome(peer.welcome, peer.public_key)
            room = await self._replica(peer)
            identity = (peer.id, peer.public_key)
            wire = ClientWire(socket)
            connection = Connection(room, self._keeper.awareness, wire, *identity, "host")
            await self._hold(seed, peer, connection, room, joined)

    async def _hold(
        self,
        seed: Seed,
        peer: Host,
        connection: Connection,
        room: SharedRoom,
        joined: Joined | None,
    ) -> None:
        with self._keeper.connected(connection):
            running = asyncio.ensure_future(connection.run())
            try:
                await _first(connection.synced.wait(), running)
                if joined is not None:
                    await self._enter(seed, peer, room)
                    joined.set_result(peer)
                self._keeper.adopt(peer.welcome)
                self._keeper.may_speak.set()
                self._pipes.dialled(connection)
                self.problems.pop(seed.url, None)
                log.info("connected to %s at %s", peer.id, seed.url)
                await running
            except RoomViolation as violation:
                self._keeper.count_incident(peer.id, violation)
                raise
            finally:
                self._pipes.left(connection)
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    async def _replica(self, peer: Host) -> SharedRoom:
        """Return our room, moved to the peer's document; or an empty room if we are joining."""
        ours, theirs = self._keeper.room, peer.welcome
        if ours is None or ours.genesis != theirs.genesis:
            return SharedRoom(theirs.genesis, epoch=theirs.epoch)
        if theirs.epoch < ours.epoch:
            raise Unavailable(f"{peer.id} is still in an earlier document of the room")
        await self._keeper.catch_up(theirs.epoch)
        return self._keeper.current

    async def _enter(self, seed: Seed, peer: Host, room: SharedRoom) -> None:
        if room is not self._keeper.room:
            await self._keeper.enter(room, peer.welcome, lambda tx: _store(tx, seed))

    def _report(self, url: str, error: Exception) -> None:
        problem = _said(url, error).message
        if self.problems.get(url) != problem:
            log.warning("not connected to %s: %s", url, problem)
        if not isinstance(error, (GatepostError, *BROKEN)):
            log.error("dialling failed unexpectedly", exc_info=error)
        self.problems[url] = problem


async def _first(wanted: Coroutine[Any, Any, object], running: "asyncio.Future[None]") -> None:
    """Wait for the first sync; raise the error that ends the connection before it."""
    waiting = asyncio.ensure_future(wanted)
    try:
        await asyncio.wait((waiting, running), timeout=_SYNC_SECS, return_when="FIRST_COMPLETED")
        if running.done():
            running.result()
            raise Unavailable("the peer hung up before it had sent the room")
        if not waiting.done():
            raise DeadlineExceeded("the peer did not send the room in time")
    finally:
        waiting.cancel()


def _said(url: str, error: Exception) -> GatepostError:
    if isinstance(error, GatepostError):
        return error
    # Only the name of the error: its text may quote the request, including the ticket.
    return Unavailable(f"{url} cannot be reached ({type(error).__name__})")


def _stored(tx: Tx) -> list[Seed]:
    row = tx.fetch_one("SELECT value FROM fact WHERE name = ?", (_SEEDS,))
    return [] if row is None else msgspec.json.decode(row[0], type=list[Seed])


def _store(tx: Tx, seed: Seed) -> None:
    seeds = [each for each in _stored(tx) if each.url != seed.url]
    value = msgspec.json.encode([*seeds, seed]).decode()
    tx.execute("INSERT OR REPLACE INTO fact VALUES (?, ?)", (_SEEDS, value))
