"""Judges datagrams: each one is a message of a member, or is refused for one reason.

The order of the checks is that of the protocol (sender, timestamp, payload). The expensive check of
the signature comes after the rate limits. A sender that returned the cookie of its address has a
separate limit, which no other sender can use up. An announcement with the HMAC of the cluster token
has a limit for its sender: a stranger cannot make one, so a flood keeps no member from becoming
known. All other datagrams share a small limit, per address and together, so forged ones do not cost
much.

A datagram at the wrong time is refused. If it is authentic, it still shows the clock offset of its
sender. Such messages have separate limits: replaying old datagrams silences no member.
"""

from hmac import compare_digest

from msgspec import Struct
from msgspec.structs import replace

from gatepost.access.rate_limit import SourceRateLimiter, TokenBucket
from gatepost.mesh.address_cookie import AddressCookies
from gatepost.mesh.datagram_signature import (
    SIGNATURE_BYTES,
    DatagramSigner,
    append_signature,
    is_hmac_valid,
    split_signature,
)
from gatepost.mesh.members import MeshMember, MeshMembers
from gatepost.mesh.mesh_time import MeshTime, MeshTimers, SteadyClock
from gatepost.mesh.messages import (
    ANNOUNCE_BYTES,
    DatagramEnvelope,
    MeshMessage,
    MessageType,
    Payload,
    PeerAnnounce,
    decode_envelope,
    decode_payload,
    encode_message,
)
from gatepost.mesh.refusals import Refusal
from gatepost.mesh.replay_cache import ReplayCache, fingerprint_datagram
from gatepost.mesh.transport import MAX_DATAGRAM_BYTES

_ANNOUNCE = MessageType.PEER_ANNOUNCE.value
_PEER_RATE, _PEER_BURST = 50.0, 100
_ANNOUNCE_RATE, _ANNOUNCE_BURST = 2.0, 10
_ADDRESS_RATE, _ADDRESS_BURST, _MAX_ADDRESSES = 20.0, 40, 1000
_UNPROVEN_RATE, _UNPROVEN_BURST = 200.0, 400


class SkewedMessage(Struct, frozen=True):
    """Refused: an authentic message of a node whose clock is this many seconds ahead or behind."""

    message: MeshMessage
    offset_secs: int


Verdict = MeshMessage | SkewedMessage | Refusal


class DatagramJudge:
    """`cluster_tokens` are the valid ones; without any, the signature alone admits."""

    def __init__(
        self, me: str, signer: DatagramSigner, cookies: AddressCookies, timers: MeshTimers, now: int
    ) -> None:
        self._me = me
        self._signer = signer
        self._cookies = cookies
        self._tolerance = timers.clock_tolerance_secs
        self._clock = SteadyClock(now)
        self._replays = ReplayCache((2 * self._tolerance + 1) * 1000, 1024)
        self._peers = SourceRateLimiter(_PEER_RATE, _PEER_BURST, self._clock)
        self._skewed = SourceRateLimiter(_PEER_RATE, _PEER_BURST, self._clock)
        self._announcers = SourceRateLimiter(_ANNOUNCE_RATE, _ANNOUNCE_BURST, self._clock)
        self._addresses = SourceRateLimiter(
            _ADDRESS_RATE, _ADDRESS_BURST, self._clock, _MAX_ADDRESSES
        )
        self._unproven = TokenBucket(_UNPROVEN_RATE, _UNPROVEN_BURST, self._clock)
        self.members: MeshMembers = {}
        self.cluster_tokens: tuple[str, ...] = ()
        self._signed_count = 0

    def judge_datagram(self, datagram: bytes, source: str, now: MeshTime) -> Verdict:
        text, signature = split_signature(datagram)
        envelope = self._open_envelope(datagram, text)
        if isinstance(envelope, Refusal):
            return envelope
        self._clock.set_time(now.steady_ms)
        offset_secs = envelope.timestamp - now.unix_secs
        if abs(offset_secs) > self._tolerance:
            if not self._try_take_skewed(envelope, source):
                return Refusal.CLOCK_SKEW
            key = self.members[envelope.node_id]
            if not self._is_authentic(key, text, signature, source):
                return Refusal.CLOCK_SKEW
            message = self._open_payload(envelope, in_tunnel=signature is None)
            if isinstance(message, Refusal):
                return Refusal.CLOCK_SKEW
            return SkewedMessage(message, offset_secs)
        refusal = self._check_origin(envelope, text, signature, source, now)
        return refusal or self._open_payload(envelope, in_tunnel=signature is None)

    def _open_envelope(self, datagram: bytes, text: bytes) -> DatagramEnvelope | Refusal:
        """The cheap checks."""
        if len(datagram) > MAX_DATAGRAM_BYTES:
            return Refusal.OVERSIZED
        envelope = decode_envelope(text)
        if envelope is None:
            return Refusal.MALFORMED
        if envelope.node_id not in self.members or envelope.node_id == self._me:
            return Refusal.UNKNOWN_SENDER
        if envelope.to not in (None, self._me):
            return Refusal.WRONG_RECEIVER
        return envelope

    def _try_take_skewed(self, envelope: DatagramEnvelope, source: str) -> bool:
        """Count a datagram at the wrong time; False if it is not worth the check of a signature."""
        if self._cookies.is_valid(envelope.echo, envelope.node_id, source):
            return self._skewed.try_take(envelope.node_id)
        return self._try_take_unproven(source)

    def _check_origin(
        self,
        envelope: DatagramEnvelope,
        text: bytes,
        signature: bytes | None,
        source: str,
        now: MeshTime,
    ) -> Refusal | None:
        """Check the origin. The expensive check of the signature comes last."""
        sender = envelope.node_id
        if signature is not None and envelope.to is None and envelope.type != _ANNOUNCE:
            # Only a first message may leave its receiver open, because others could have passed it
            # on.
            return Refusal.WRONG_RECEIVER
        fingerprint = fingerprint_datagram(text)
        if not self._replays.can_take(sender, fingerprint, now.steady_ms):
            return Refusal.REPLAYED
        if not self._try_take(envelope, source):
            return Refusal.RATE_LIMITED
        if not self._is_authentic(self.members[sender], text, signature, source):
            return Refusal.BAD_SIGNATURE
        self._replays.remember(sender, fingerprint, now.steady_ms)
        return None

    def sign_message(self, message: MeshMessage, now: MeshTime) -> bytes:
        """The signed datagram of a message, which differs from all earlier ones."""
        self._signed_count += 1
        text = encode_message(message, now.unix_secs, self._signed_count)
        if isinstance(message.payload, PeerAnnounce):
            missing = ANNOUNCE_BYTES - len(text) - SIGNATURE_BYTES - len(',"padding":""')
            padded = replace(message.payload, padding="." * max(0, missing))
            padded_message = replace(message, payload=padded)
            text = encode_message(padded_message, now.unix_secs, self._signed_count)
        return append_signature(text, self._signer)

    def _try_take(self, envelope: DatagramEnvelope, source: str) -> bool:
        """Count a datagram; False if its limit is used up."""
        if self._cookies.is_valid(envelope.echo, envelope.node_id, source):
            return self._peers.try_take(envelope.node_id)
        if self._shows_cluster_token(envelope) and self._announcers.try_take(envelope.node_id):
            return True
        return self._try_take_unproven(source)

    def _try_take_unproven(self, source: str) -> bool:
        return self._addresses.try_take(source) and self._unproven.try_take()

    def _shows_cluster_token(self, envelope: DatagramEnvelope) -> bool:
        """Whether this is an announcement of a node with the cluster token."""
        if envelope.type != _ANNOUNCE or not self.cluster_tokens:
            return False
        payload = decode_payload(envelope)
        return payload is not None and self._has_token(envelope, payload)

    def _is_authentic(
        self, member: MeshMember, text: bytes, signature: bytes | None, source: str
    ) -> bool:
        if signature is None:
            return member.is_in_tunnel(source)
        return self._signer.verify(member.public_key, text, signature)

    def _open_payload(
        self, envelope: DatagramEnvelope, *, in_tunnel: bool
    ) -> MeshMessage | Refusal:
        payload = decode_payload(envelope)
        if payload is None:
            return Refusal.BAD_PAYLOAD
        if not self._has_token(envelope, payload) and not (
            in_tunnel and self._shows_token(payload)
        ):
            return Refusal.BAD_HMAC
        return MeshMessage(
            envelope.node_id,
            payload,
            envelope.to,
            envelope.cookie,
            envelope.echo,
            envelope.skew,
        )

    def _shows_token(self, payload: Payload) -> bool:
        """Whether an announcement has the cluster token itself: only a tunnel keeps it secret."""
        shown = payload.cluster_token.encode() if isinstance(payload, PeerAnnounce) else b""
        return any(compare_digest(shown, token.encode()) for token in self.cluster_tokens)

    def _has_token(self, envelope: DatagramEnvelope, payload: Payload) -> bool:
        if not isinstance(payload, PeerAnnounce) or not self.cluster_tokens:
            return True
        return is_hmac_valid(self.cluster_tokens, envelope.node_id, envelope.to or "", payload)
