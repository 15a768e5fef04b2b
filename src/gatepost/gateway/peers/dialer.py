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
from gatepost.gateway.peers.connection import PeerConnection
from gatepost.gateway.peers.connection_links import ConnectionLinks
from gatepost.gateway.peers.join_client import (
    NETWORK_ERRORS,
    DialedPeerSocket,
    JoinClient,
    JoinedPeer,
    SelfDialError,
    http_url,
)
from gatepost.gateway.peers.record_publisher import RecordPublisher
from gatepost.journal import Tx
from gatepost.room import SharedRoom

log = logging.getLogger(__name__)

_MAX_BACKBONE_PEERS = 8
_MAX_MAIL_PEERS = 256
_FIRST_RETRY_SECS = 0.1
_MAX_RETRY_SECS = 15.0
_STABLE_SECS = 10.0
_SYNC_SECS = 10.0
_CHECK_SECS = 1.0
_SOONEST_SECS = 0.02
_MAX_PROOFS = 4
_SEEDS_FACT = "room_seeds"


class Seed(Struct, frozen=True):
    """An address to dial. `fingerprint` is the expected key; None accepts any room member."""

    url: str
    fingerprint: str | None = None


JoinFuture = asyncio.Future[JoinedPeer]


class Dialer:
    """Keeps connections to peers. `problems`: address → why it is not connected."""

    def __init__(self, publisher: RecordPublisher, links: ConnectionLinks) -> None:
        self._publisher = publisher
        self._replica = replica = publisher.replica
        self._links = links
        self._core = replica.core
        self._join_client = JoinClient(replica.core, replica.members)
        self._calls: dict[str, asyncio.Task[None]] = {}
        self.problems: dict[str, str] = {}

    async def run(self) -> None:
        """Dial until cancelled."""
        try:
            await self._core.background.repeat_forever(
                _SOONEST_SECS, self._choose_peers, "no peers were chosen to dial"
            )
        finally:
            for call in self._calls.values():
                call.cancel()
            await asyncio.gather(*self._calls.values(), return_exceptions=True)
            await self._join_client.close()

    async def _choose_peers(self) -> None:
        changes = self._replica.change_count
        if self._replica.room is not None:
            self._update_calls(await self._find_seeds())
        await self._replica.wait_for_change(changes, _CHECK_SECS)

    async def has_seeds(self) -> bool:
        return self._replica.room is not None and bool(await self._find_seeds())

    async def join_room(self, url: str, token: str) -> JoinedPeer:
        """Join a room with an invite, and keep the connection.

        A member may use another member's invite; it then gets the tier of that invite.
        """
        expected = issuer_fingerprint(token)
        if not self._replica.members.has_member(expected):
            await self._replica.check_may_join()
        joined: JoinFuture = asyncio.get_running_loop().create_future()
        call = asyncio.create_task(self._join_and_stay(Seed(url, expected), token, joined))
        if (before := self._calls.get(url)) is not None:
            before.cancel()
        self._calls[url] = call
        return await joined

    # -- choosing addresses

    async def _find_seeds(self) -> dict[str, Seed]:
        stored = await self._core.read(_load_seeds)
        named = [Seed(url) for url in self._core.settings.room.seeds]
        return {seed.url: seed for seed in (*named, *self._member_seeds(), *stored)}

    def _member_seeds(self) -> list[Seed]:
        """Return backbone nodes, a different choice per gateway, and nodes we have mail for."""
        own = self._core.node.key.public
        mail_for = self._core.delivery.sender.deliveries.destinations
        backbone, others = [], []
        for member in self._replica.current_room.effective.nodes.values():
            if member.public_key == own or not member.record.endpoint_ws:
                continue
            seed = Seed(http_url(member.record.endpoint_ws), fingerprint_key(member.public_key))
            if member.is_backbone:
                backbone.append(seed)
            elif member.id in mail_for:
                others.append(seed)
        shuffle = random.Random(self._core.node.id)
        return (
            sorted(backbone, key=lambda seed: shuffle.random())[:_MAX_BACKBONE_PEERS]
            + others[:_MAX_MAIL_PEERS]
        )

    def _update_calls(self, seeds: dict[str, Seed]) -> None:
        for url in self._calls.keys() - seeds.keys():
            self._calls.pop(url).cancel()
            self.problems.pop(url, None)
        for url, seed in seeds.items():
            if url not in self._calls:
                self._calls[url] = asyncio.create_task(self._keep_connected(seed))

    # -- one connection

    async def _join_and_stay(self, seed: Seed, token: str, joined: JoinFuture) -> None:
        try:
            answer = await self._join_client.exchange_invite(seed.url, token)
            await self._open_connection(seed, answer, joined)
        except asyncio.CancelledError:
            joined.cancel()
            raise
        except Exception as error:
            if not joined.done():
                self._calls.pop(seed.url, None)
                joined.set_exception(_as_gatepost_error(seed.url, error))
                return
        await self._keep_connected(seed)

    async def _keep_connected(self, seed: Seed) -> None:
        wait = _FIRST_RETRY_SECS
        while True:
            began = asyncio.get_running_loop().time()
            try:
                answer = await self._join_client.exchange_proof(seed.url, seed.fingerprint)
                await self._open_connection(seed, answer)
            except SelfDialError:
                return
            except Exception as error:
                self._report_problem(seed.url, error)
                if isinstance(error, Revoked):
                    await self._learn_revocation(seed.url)
                    wait = _MAX_RETRY_SECS
            was_stable = asyncio.get_running_loop().time() - began > _STABLE_SECS
            wait = _FIRST_RETRY_SECS if was_stable else min(wait * 2, _MAX_RETRY_SECS)
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))

    async def _open_connection(
        self, seed: Seed, answer: ExchangeAnswer, joined: JoinFuture | None = None
    ) -> None:
        async with self._join_client.open_socket(seed.url, answer) as (socket, peer):
            self._replica.check_welcome(peer.welcome, peer.public_key)
            room = await self._room_of(peer)
            identity = (peer.id, peer.public_key)
            wire = DialedPeerSocket(socket)
            connection = PeerConnection(room, self._replica.awareness, wire, *identity, "listener")
            await self._run_connection(seed, peer, connection, room, joined)

    async def _run_connection(
        self,
        seed: Seed,
        peer: JoinedPeer,
        connection: PeerConnection,
        room: SharedRoom,
        joined: JoinFuture | None,
    ) -> None:
        with self._replica.connections.track_connection(connection):
            running = asyncio.ensure_future(connection.run())
            try:
                await _wait_for_sync(connection.synced.wait(), running)
                if joined is not None:
                    await self._enter_room(seed, peer, room)
                    joined.set_result(peer)
                self._replica.adopt_chain(peer.welcome)
                self._publisher.may_publish.set()
                self._links.add_dialled(connection)
                self.problems.pop(seed.url, None)
                log.info("connected to %s at %s", peer.id, seed.url)
                await running
            except RoomViolation as violation:
                self._replica.connections.count_incident(peer.id, violation)
                raise
            finally:
                self._links.remove_connection(connection)
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    async def _room_of(self, peer: JoinedPeer) -> SharedRoom:
        """Return our room, moved to the peer's document; or an empty room if we are joining."""
        ours, theirs = self._replica.room, peer.welcome
        if ours is None or ours.genesis != theirs.genesis:
            return SharedRoom(theirs.genesis, epoch=theirs.epoch)
        if theirs.epoch < ours.epoch:
            raise Unavailable(f"{peer.id} is still in an earlier document of the room")
        await self._replica.catch_up_to(theirs.epoch)
        return self._replica.current_room

    async def _enter_room(self, seed: Seed, peer: JoinedPeer, room: SharedRoom) -> None:
        if room is not self._replica.room:
            await self._replica.enter_room(room, peer.welcome, lambda tx: _store_seed(tx, seed))

    async def _learn_revocation(self, url: str) -> None:
        """Take the records that revoke this node into our room, if they are genuine."""
        try:
            for proof in (await self._join_client.fetch_revocations(url))[:_MAX_PROOFS]:
                self._replica.current_room.accept_record(proof.record, proof.signature)
        except (GatepostError, *NETWORK_ERRORS) as error:
            log.warning("%s does not prove that we are revoked: %s", url, error)

    def _report_problem(self, url: str, error: Exception) -> None:
        problem = _as_gatepost_error(url, error).message
        if self.problems.get(url) != problem:
            log.warning("not connected to %s: %s", url, problem)
        if not isinstance(error, (GatepostError, *NETWORK_ERRORS)):
            log.error("dialling failed unexpectedly", exc_info=error)
        self.problems[url] = problem


async def _wait_for_sync(
    wanted: Coroutine[Any, Any, object], running: "asyncio.Future[None]"
) -> None:
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


def _as_gatepost_error(url: str, error: Exception) -> GatepostError:
    if isinstance(error, GatepostError):
        return error
    # Only the name of the error: its text may quote the request, including the ticket.
    return Unavailable(f"{url} cannot be reached ({type(error).__name__})")


def _load_seeds(tx: Tx) -> list[Seed]:
    row = tx.fetch_one("SELECT value FROM fact WHERE name = ?", (_SEEDS_FACT,))
    return [] if row is None else msgspec.json.decode(row[0], type=list[Seed])


def _store_seed(tx: Tx, seed: Seed) -> None:
    seeds = [each for each in _load_seeds(tx) if each.url != seed.url]
    value = msgspec.json.encode([*seeds, seed]).decode()
    tx.execute("INSERT OR REPLACE INTO fact (name, value) VALUES (?, ?)", (_SEEDS_FACT, value))
