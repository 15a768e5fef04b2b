"""Dialling peers: keeps a connection to each selected gateway, and reopens it when it ends."""

import asyncio
import logging
import random
from collections.abc import Coroutine
from typing import Any

from gatepost.access.auth_messages import ExchangeAnswer
from gatepost.access.node_invites import read_invite_issuer
from gatepost.connect.connect_errors import is_untrusted
from gatepost.errors import (
    DeadlineExceeded,
    GatepostError,
    InvalidTicket,
    Revoked,
    Unavailable,
    WrongHost,
)
from gatepost.events import fingerprint_key
from gatepost.links.connections.connection import PeerConnection
from gatepost.links.service.connection_links import ConnectionLinks, max_queued_bytes
from gatepost.links.service.join_client import (
    NETWORK_ERRORS,
    DialedPeerSocket,
    JoinClient,
    JoinedPeer,
    SelfDialError,
    dial_error,
)
from gatepost.links.service.peer_selection import PeerSelection, SeedKey, may_dial_loopback
from gatepost.links.service.seeds import Seed, store_seed
from gatepost.room import SharedRoom
from gatepost.room.service.record_announcer import RecordAnnouncer
from gatepost.room.sync_protocol import epoch_message

log = logging.getLogger(__name__)

_FIRST_RETRY_SECS = 0.1
_MAX_RETRY_SECS = 15.0
# The same for an address from the room at which another node answers.
_MAX_WRONG_RETRY_SECS = 600.0
_STABLE_SECS = 10.0
_SYNC_SECS = 30.0
_CHECK_SECS = 1.0
_SOONEST_SECS = 0.02
_MAX_PROOFS = 4

JoinFuture = asyncio.Future[JoinedPeer]


class PeerBehindError(Unavailable):
    """The peer is in an earlier document; it has our proof and will move to ours at once."""


class Dialer:
    """Keeps connections to peers. `problems`: address → why it is not connected."""

    def __init__(self, announcer: RecordAnnouncer, links: ConnectionLinks) -> None:
        self._announcer = announcer
        self._replica = replica = announcer.replica
        self._links = links
        self._core = replica.core
        self._join_client = JoinClient(
            replica.core,
            replica.members,
            lambda: may_dial_loopback(replica),
            lambda: replica.onion_proxy,
        )
        self._selection = PeerSelection(replica)
        self._calls: dict[SeedKey, asyncio.Task[None]] = {}
        self._seeds: dict[SeedKey, Seed] = {}
        self._joining: set[SeedKey] = set()
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
        changes = self._replica.changes.count
        if self._replica.room is not None:
            self._update_calls(await self._selection.find_seeds())
        await self._replica.changes.wait_for_change(changes, _CHECK_SECS)

    async def has_seeds(self) -> bool:
        return self._replica.room is not None and bool(await self._selection.find_seeds())

    async def join_room(
        self, url: str, token: str, authorities: str = "", genesis: str | None = None
    ) -> JoinedPeer:
        """Join a room with an invite, and keep the connection.

        `genesis` is the fingerprint of the room's genesis, if that is known.
        A member may use another member's invite; it then gets the tier of that invite.
        `authorities` is a PEM text to trust for this gateway, now and later.
        """
        issuer = read_invite_issuer(token)
        if not self._replica.members.has_member(issuer.fingerprint):
            await self._replica.check_may_join()
        joined: JoinFuture = asyncio.get_running_loop().create_future()
        pins = () if issuer.tls_pin is None else (issuer.tls_pin,)
        seed = Seed(url, issuer.fingerprint, pins, authorities)
        call = asyncio.create_task(self._join_and_stay(seed, token, joined, genesis))
        key = (url, seed.fingerprint)
        if (before := self._calls.get(key)) is not None:
            before.cancel()
        self._calls[key] = call
        self._joining.add(key)
        try:
            return await joined
        finally:
            self._joining.discard(key)

    async def visit_member(self, node: str) -> str | None:
        """Connect to a member's address in the room and leave again.

        Returns why that failed, or nothing; None if the room has no address of it.
        """
        if (seed := await self._selection.find_member_seed(node)) is None:
            return None
        try:
            await self._join_client.visit(seed)
        except SelfDialError:
            return f"{seed.url} is the address of the gateway that was asked, not of {node}"
        except (GatepostError, *NETWORK_ERRORS) as error:
            return dial_error(seed.url, error).message
        return ""

    # -- the calls

    def _update_calls(self, seeds: dict[SeedKey, Seed]) -> None:
        # An address that is being joined becomes a seed once that has succeeded.
        for key in self._calls.keys() - seeds.keys() - self._joining:
            self._calls.pop(key).cancel()
            self.problems.pop(key[0], None)
        self._seeds = seeds
        for key, seed in seeds.items():
            if key not in self._calls:
                self._calls[key] = asyncio.create_task(self._keep_connected(seed))

    # -- one connection

    async def _join_and_stay(
        self, seed: Seed, token: str, joined: JoinFuture, genesis: str | None
    ) -> None:
        try:
            answer = await self._join_client.exchange_invite(seed, token)
            await self._open_connection(seed, answer, joined, genesis)
        except asyncio.CancelledError:
            joined.cancel()
            raise
        except Exception as error:
            if not joined.done():
                self._calls.pop((seed.url, seed.fingerprint), None)
                joined.set_exception(dial_error(seed.url, error))
                return
        await self._keep_connected(seed)

    async def _keep_connected(self, seed: Seed) -> None:
        wait = _FIRST_RETRY_SECS
        by_pins = False
        while True:
            began = asyncio.get_running_loop().time()
            # The room may name another pin by now.
            seed = self._seeds.get((seed.url, seed.fingerprint), seed)
            chosen = self._selection.with_member_pins(seed) if by_pins else seed
            longest = _MAX_RETRY_SECS
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
                wait, longest = _limit_pause(seed, error, wait)
                if isinstance(error, Revoked):
                    await self._learn_revocation(chosen)
            was_stable = asyncio.get_running_loop().time() - began > _STABLE_SECS
            wait = _FIRST_RETRY_SECS if was_stable else min(wait * 2, longest)
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))

    async def _open_connection(
        self,
        seed: Seed,
        answer: ExchangeAnswer,
        joined: JoinFuture | None = None,
        genesis: str | None = None,
    ) -> None:
        async with self._join_client.open_socket(seed, answer) as (socket, peer):
            self._replica.check_welcome(peer.welcome, peer.public_key)
            _check_genesis(peer, genesis)
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
                self._core.settings.delivery.link_silence_secs,
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
                self._announcer.may_publish.set()
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


def _check_genesis(peer: JoinedPeer, fingerprint: str | None) -> None:
    if fingerprint not in {None, fingerprint_key(peer.welcome.genesis.key)}:
        raise WrongHost(f"{peer.id} is in another room than the one of the join secret")


def _limit_pause(seed: Seed, error: Exception, pause: float) -> tuple[float, float]:
    """The pause to double after this error, and its upper limit."""
    if isinstance(error, PeerBehindError):
        return min(pause, _CHECK_SECS), _MAX_RETRY_SECS
    if isinstance(error, Revoked):
        return _MAX_RETRY_SECS, _MAX_RETRY_SECS
    if seed.from_room and isinstance(error, (WrongHost, InvalidTicket)):
        return pause, _MAX_WRONG_RETRY_SECS
    return pause, _MAX_RETRY_SECS


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
