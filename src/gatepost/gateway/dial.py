"""Dialling out: a connection to every gateway worth one, opened again whenever it ends."""

import asyncio
import logging
import random
from collections.abc import Coroutine
from typing import Any

import msgspec
from msgspec import Struct

from gatepost.access.forms import ExchangeAnswer
from gatepost.access.invites import issuer_fingerprint
from gatepost.errors import DeadlineExceeded, GatepostError, Revoked, RoomViolation, Unavailable
from gatepost.events import fingerprint
from gatepost.gateway.connection import Connection
from gatepost.gateway.knocking import BROKEN, ClientWire, Host, Knocker, OurselvesError, http_url
from gatepost.gateway.pipes import Pipes
from gatepost.gateway.room import RoomKeeper
from gatepost.journal import Tx
from gatepost.room import Room

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
    """Where to dial, and whom to expect; None: any member of our room."""

    url: str
    fingerprint: str | None = None


Joined = asyncio.Future[Host]


class Dialer:
    """`problems` says for each address why it is not connected."""

    def __init__(self, keeper: RoomKeeper, pipes: Pipes) -> None:
        self._keeper = keeper
        self._pipes = pipes
        self._core = keeper.core
        self._knocker = Knocker(keeper.core, keeper.known)
        self._calls: dict[str, asyncio.Task[None]] = {}
        self.problems: dict[str, str] = {}

    async def run(self) -> None:
        """For as long as the gateway runs."""
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
        """Get in with an invite; the connection stays.

        A member may be invited again by another, and then is of the tier that invite says.
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

    # -- whom to dial

    async def _seeds(self) -> dict[str, Seed]:
        stored = await self._core.read(_stored)
        named = [Seed(url) for url in self._core.settings.room.seeds]
        return {seed.url: seed for seed in (*named, *self._members(), *stored)}

    def _members(self) -> list[Seed]:
        """Backbone nodes, each gateway another choice of them; and those we have mail for."""
        own, mail_for = (
            self._core.node.key.public,
            self._core.delivery.sender.deliveries.destinations,
        )
        backbone, others = [], []
        for member in self._keeper.current.view.nodes.values():
            if member.public_key == own or not member.record.endpoint_ws:
                continue
            seed = Seed(http_url(member.record.endpoint_ws), fingerprint(member.public_key))
            if member.is_backbone:
                backbone.append(seed)
            elif member.id in mail_for:
                others.append(seed)
        taste = random.Random(self._core.node.id)
        return sorted(backbone, key=lambda seed: taste.random())[:_MOST] + others[:_MOST_OTHERS]

    def _call(self, seeds: dict[str, Seed]) -> None:
        for url in self._calls.keys() - seeds.keys():
            self._calls.pop(url).cancel()
            self.problems.pop(url, None)
        for url, seed in seeds.items():
            if url not in self._calls:
                self._calls[url] = asyncio.create_task(self._stay(seed))

    # -- one of them

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
            settled = asyncio.get_running_loop().time() - began > _SETTLED_SECS
            wait = _FIRST_SECS if settled else min(wait * 2, _LONGEST_SECS)
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))

    async def _visit(
        self, seed: Seed, answer: ExchangeAnswer, joined: Joined | None = None
    ) -> None:
        async with self._knocker.opened(seed.url, answer) as (socket, host):
            self._keeper.check_welcome(host.welcome, host.public_key)
            room = await self._replica(host)
            who = (host.id, host.public_key)
            wire = ClientWire(socket)
            connection = Connection(room, self._keeper.awareness, wire, *who, "host")
            await self._hold(seed, host, connection, room, joined)

    async def _hold(
        self, seed: Seed, host: Host, connection: Connection, room: Room, joined: Joined | None
    ) -> None:
        with self._keeper.connected(connection):
            running = asyncio.ensure_future(connection.run())
            try:
                await _first(connection.synced.wait(), running)
                if joined is not None:
                    await self._enter(seed, host, room)
                    joined.set_result(host)
                self._keeper.adopt(host.welcome)
                self._keeper.may_speak.set()
                self._pipes.dialled(connection)
                self.problems.pop(seed.url, None)
                log.info("connected to %s at %s", host.id, seed.url)
                await running
            except RoomViolation as violation:
                self._keeper.count_incident(host.id, violation)
                raise
            finally:
                self._pipes.left(connection)
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    async def _replica(self, host: Host) -> Room:
        """Ours, in the same document as the host's; or a fresh one for who joins."""
        ours, theirs = self._keeper.room, host.welcome
        if ours is None or ours.genesis != theirs.genesis:
            return Room(theirs.genesis, epoch=theirs.epoch)
        if theirs.epoch < ours.epoch:
            raise Unavailable(f"{host.id} is in an earlier document of the room still")
        await self._keeper.catch_up(theirs.epoch)
        return self._keeper.current

    async def _enter(self, seed: Seed, host: Host, room: Room) -> None:
        if room is not self._keeper.room:
            await self._keeper.enter(room, host.welcome, lambda tx: _store(tx, seed))

    def _report(self, url: str, error: Exception) -> None:
        said = _said(url, error).message
        if self.problems.get(url) != said:
            log.warning("not connected to %s: %s", url, said)
        if not isinstance(error, (GatepostError, *BROKEN)):
            log.error("dialling failed unexpectedly", exc_info=error)
        self.problems[url] = said


async def _first(wanted: Coroutine[Any, Any, object], running: "asyncio.Future[None]") -> None:
    """Wait for what is wanted; whatever ends the connection before that is raised."""
    waiting = asyncio.ensure_future(wanted)
    try:
        await asyncio.wait((waiting, running), timeout=_SYNC_SECS, return_when="FIRST_COMPLETED")
        if running.done():
            running.result()
            raise Unavailable("the host hung up before it had told us what is in the room")
        if not waiting.done():
            raise DeadlineExceeded("the host does not tell us what is in the room")
    finally:
        waiting.cancel()


def _said(url: str, error: Exception) -> GatepostError:
    if isinstance(error, GatepostError):
        return error
    # Only its name: its text may quote what was sent, ticket and all.
    return Unavailable(f"{url} cannot be reached ({type(error).__name__})")


def _stored(tx: Tx) -> list[Seed]:
    row = tx.one("SELECT value FROM fact WHERE name = ?", (_SEEDS,))
    return [] if row is None else msgspec.json.decode(row[0], type=list[Seed])


def _store(tx: Tx, seed: Seed) -> None:
    seeds = [each for each in _stored(tx) if each.url != seed.url]
    value = msgspec.json.encode([*seeds, seed]).decode()
    tx.run("INSERT OR REPLACE INTO fact VALUES (?, ?)", (_SEEDS, value))
