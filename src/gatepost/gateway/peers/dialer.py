"""Dialling peers: keeps a connection to each selected gateway, and reopens it when it ends."""

import asyncio
import logging
import random
from collections.abc import Coroutine
from typing import Any
from urllib.parse import urlsplit

from gatepost.access.auth_messages import ExchangeAnswer
from gatepost.access.node_invites import read_invite_issuer
from gatepost.config import is_loopback
from gatepost.connect_errors import is_untrusted
from gatepost.errors import DeadlineExceeded, GatepostError, Revoked, Unavailable
from gatepost.events import fingerprint_key
from gatepost.gateway.peers.connection import PeerConnection
from gatepost.gateway.peers.connection_links import ConnectionLinks, max_queued_bytes
from gatepost.gateway.peers.join_client import (
    NETWORK_ERRORS,
    DialedPeerSocket,
    JoinClient,
    JoinedPeer,
    SelfDialError,
    dial_error,
    http_url,
)
from gatepost.gateway.peers.record_publisher import RecordPublisher
from gatepost.gateway.peers.seeds import Seed, load_seeds, store_seed
from gatepost.room import RoomMember, SharedRoom
from gatepost.room.sync_protocol import epoch_message

log = logging.getLogger(__name__)

_MAX_BACKBONE_PEERS = 8
_MAX_MAIL_PEERS = 256
_FIRST_RETRY_SECS = 0.1
_MAX_RETRY_SECS = 15.0
_STABLE_SECS = 10.0
_SYNC_SECS = 30.0
_CHECK_SECS = 1.0
_SOONEST_SECS = 0.02
_MAX_PROOFS = 4

JoinFuture = asyncio.Future[JoinedPeer]


class PeerBehindError(Unavailable):
    """The peer is in an earlier document. It has our proof, and moves on at once."""


class Dialer:
    """Keeps connections to peers. `problems`: address → why it is not connected."""

    def __init__(self, publisher: RecordPublisher, links: ConnectionLinks) -> None:
        self._publisher = publisher
        self._replica = replica = publisher.replica
        self._links = links
        self._core = replica.core
        self._join_client = JoinClient(replica.core, replica.members)
        self._calls: dict[str, asyncio.Task[None]] = {}
        self._seeds: dict[str, Seed] = {}
        self._joining: set[str] = set()
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

    async def _choose_peers(self) -> None:
        changes = self._replica.change_count
        if self._replica.room is not None:
            self._update_calls(await self._find_seeds())
        await self._replica.wait_for_change(changes, _CHECK_SECS)

    async def has_seeds(self) -> bool:
        return self._replica.room is not None and bool(await self._find_seeds())

    async def join_room(self, url: str, token: str, authorities: str = "") -> JoinedPeer:
        """Join a room with an invite, and keep the connection.

        A member may use another member's invite; it then gets the tier of that invite.
        `authorities` is a PEM text to trust for this gateway, now and later.
        """
        issuer = read_invite_issuer(token)
        if not self._replica.members.has_member(issuer.fingerprint):
            await self._replica.check_may_join()
        joined: JoinFuture = asyncio.get_running_loop().create_future()
        pins = () if issuer.tls_pin is None else (issuer.tls_pin,)
        seed = Seed(url, issuer.fingerprint, pins, authorities)
        call = asyncio.create_task(self._join_and_stay(seed, token, joined))
        if (before := self._calls.get(url)) is not None:
            before.cancel()
        self._calls[url] = call
        self._joining.add(url)
        try:
            return await joined
        finally:
            self._joining.discard(url)

    # -- choosing addresses

    async def _find_seeds(self) -> dict[str, Seed]:
        stored = await self._core.read(load_seeds)
        authorities = "\n".join(dict.fromkeys(seed.authorities for seed in stored))
        named = [Seed(url, None, (), authorities) for url in self._core.settings.room.seeds]
        members = self._member_seeds(authorities)
        known = [self._refresh_pins(seed) for seed in stored]
        return {seed.url: seed for seed in (*named, *members, *known)}

    def _refresh_pins(self, seed: Seed) -> Seed:
        """Prefer the pin in a member's own record to the older one of its invite."""
        for member in self._replica.current_room.effective.nodes.values():
            if fingerprint_key(member.public_key) == seed.fingerprint:
                return Seed(seed.url, seed.fingerprint, _tls_pins(member), seed.authorities)
        return seed

    def _member_seeds(self, authorities: str) -> list[Seed]:
        """Return backbone nodes, a different choice per gateway, and nodes we have mail for."""
        own = self._core.node.key.public
        mail_for = self._core.delivery.sender.deliveries.destinations
        backbone, others = [], []
        for member in self._replica.current_room.effective.nodes.values():
            if member.public_key == own or not self._can_dial(member):
                continue
            url, key = http_url(member.record.endpoint_ws or ""), fingerprint_key(member.public_key)
            seed = Seed(url, key, _tls_pins(member), authorities)
            if member.is_backbone:
                backbone.append(seed)
            elif member.id in mail_for:
                others.append(seed)
        shuffle = random.Random(self._core.node.id)
        return (
            sorted(backbone, key=lambda seed: shuffle.random())[:_MAX_BACKBONE_PEERS]
            + others[:_MAX_MAIL_PEERS]
        )

    def _can_dial(self, member: RoomMember) -> bool:
        """A member on loopback is on its own machine, and only there it can be dialled."""
        theirs, ours = member.record.endpoint_ws, self._replica.endpoint
        if theirs is None:
            return False
        return not _is_loopback_url(theirs) or (ours is not None and _is_loopback_url(ours))

    def _with_member_pins(self, seed: Seed) -> Seed:
        members = self._replica.current_room.effective.nodes.values()
        pins = tuple(pin for member in members for pin in _tls_pins(member))
        return Seed(seed.url, seed.fingerprint, pins, seed.authorities)

    def _update_calls(self, seeds: dict[str, Seed]) -> None:
        # An address that is being joined becomes a seed once that has succeeded.
        for url in self._calls.keys() - seeds.keys() - self._joining:
            self._calls.pop(url).cancel()
            self.problems.pop(url, None)
        self._seeds = seeds
        for url, seed in seeds.items():
            if url not in self._calls:
                self._calls[url] = asyncio.create_task(self._keep_connected(seed))

    # -- one connection

    async def _join_and_stay(self, seed: Seed, token: str, joined: JoinFuture) -> None:
        try:
            answer = await self._join_client.exchange_invite(seed, token)
            await self._open_connection(seed, answer, joined)
        except asyncio.CancelledError:
            joined.cancel()
            raise
        except Exception as error:
            if not joined.done():
                self._calls.pop(seed.url, None)
                joined.set_exception(dial_error(seed.url, error))
                return
        await self._keep_connected(seed)

    async def _keep_connected(self, seed: Seed) -> None:
        wait = _FIRST_RETRY_SECS
        by_pins = False
        while True:
            began = asyncio.get_running_loop().time()
            # The room may name another pin by now.
            seed = self._seeds.get(seed.url, seed)
            chosen = self._with_member_pins(seed) if by_pins else seed
            try:
                answer = await self._join_client.exchange_proof(chosen)
                await self._open_connection(chosen, answer)
            except SelfDialError:
                return
            except Exception as error:
                # A seed of the settings may be any member, known by an authority or by its pin.
                untrusted = seed.fingerprint is None and is_untrusted(error)
                if not (by_pins and untrusted):
                    self._report_problem(seed.url, error)
                by_pins = untrusted and not by_pins
                if isinstance(error, PeerBehindError):
                    wait = min(wait, _CHECK_SECS)
                if isinstance(error, Revoked):
                    await self._learn_revocation(chosen)
                    wait = _MAX_RETRY_SECS
            was_stable = asyncio.get_running_loop().time() - began > _STABLE_SECS
            wait = _FIRST_RETRY_SECS if was_stable else min(wait * 2, _MAX_RETRY_SECS)
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))

    async def _open_connection(
        self, seed: Seed, answer: ExchangeAnswer, joined: JoinFuture | None = None
    ) -> None:
        async with self._join_client.open_socket(seed, answer) as (socket, peer):
            self._replica.check_welcome(peer.welcome, peer.public_key)
            wire = DialedPeerSocket(socket)
            room = await self._room_of(peer, wire)
            identity = (peer.id, peer.public_key)
            connection = PeerConnection(
                room,
                self._replica.awareness,
                wire,
                *identity,
                "listener",
                max_queued_bytes(self._core.settings.delivery.window_bytes),
            )
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
            except GatepostError as error:
                self._replica.connections.report_end(peer.id, error)
                raise
            finally:
                self._links.remove_connection(connection)
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    async def _room_of(self, peer: JoinedPeer, wire: DialedPeerSocket) -> SharedRoom:
        """Return our room, moved to the peer's document; or an empty room if we are joining."""
        ours, theirs = self._replica.room, peer.welcome
        if ours is None or ours.genesis != theirs.genesis:
            proof = theirs.epoch_proof
            return SharedRoom(theirs.genesis, epoch=theirs.epoch, epoch_proof=proof)
        if theirs.epoch < ours.epoch:
            if ours.epoch_proof is not None:
                await wire.send(epoch_message(ours.epoch_proof))
            raise PeerBehindError(f"{peer.id} is still in an earlier document of the room")
        if theirs.epoch_proof is not None:
            await self._replica.catch_up_to(theirs.epoch_proof)
        return self._replica.current_room

    async def _enter_room(self, seed: Seed, peer: JoinedPeer, room: SharedRoom) -> None:
        if room is self._replica.room:
            # A member joins again: the peer may have moved, or have a new certificate.
            await self._core.commit(lambda tx: store_seed(tx, seed))
        else:
            await self._replica.enter_room(room, peer.welcome, lambda tx: store_seed(tx, seed))

    async def _learn_revocation(self, seed: Seed) -> None:
        """Take the records that revoke this node into our room, if they are genuine."""
        try:
            for proof in (await self._join_client.fetch_revocations(seed))[:_MAX_PROOFS]:
                self._replica.current_room.accept_record(proof.record, proof.signature)
        except (GatepostError, *NETWORK_ERRORS) as error:
            log.warning("%s does not prove that we are revoked: %s", seed.url, error)

    def _report_problem(self, url: str, error: Exception) -> None:
        problem = dial_error(url, error).message
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


def _is_loopback_url(url: str) -> bool:
    return is_loopback(urlsplit(url).hostname or "")


def _tls_pins(member: RoomMember) -> tuple[str, ...]:
    return () if member.record.tls_pin is None else (member.record.tls_pin,)
