"""Frames over WebSocket: the transport of one channel."""

import asyncio
from typing import Any

from litestar.exceptions import WebSocketDisconnect

from gatepost.gateway.api.frame_channel import FrameChannel, run_channel
from gatepost.listening.route_parameters import AnyWebSocket
from gatepost.listening.websocket_handshake import CLOSE_TOO_LARGE


class WebSocketTransport:
    """Carries one channel: one task receives frames, one sends its output."""

    def __init__(self, socket: AnyWebSocket, max_frame: int) -> None:
        self._socket = socket
        self._max_frame = max_frame
        self._pending = asyncio.Event()
        self._binary = True
        self.wake = self._pending.set

    async def run(self, channel: FrameChannel) -> None:
        await run_channel(channel, self._receive_frames(channel), self._send_frames(channel))

    async def _receive_frames(self, channel: FrameChannel) -> None:
        while True:
            message: dict[str, Any] = dict(await self._socket.receive())
            if message["type"] == "websocket.disconnect":
                return
            data = message.get("bytes")
            self._binary = data is not None
            frame = message.get("text") or "" if data is None else data
            # The server allows larger frames, because messages of the room may be larger.
            if len(frame) > self._max_frame:
                await self._socket.close(CLOSE_TOO_LARGE, "limits.max_body_bytes")
                return
            channel.receive_frame(frame)
            await channel.wait_for_capacity()

    async def _send_frames(self, channel: FrameChannel) -> None:
        while True:
            await self._pending.wait()
            self._pending.clear()
            try:
                # Each send waits while the client's buffers are full.
                for frame in channel.take_output():
                    await self._send_frame(frame)
            except WebSocketDisconnect:
                return

    async def _send_frame(self, frame: bytes) -> None:
        """Send in the kind of the last frame received: text for text, bytes for bytes."""
        if self._binary:
            await self._socket.send({"type": "websocket.send", "bytes": frame, "text": None})
        else:
            text = frame.decode()
            await self._socket.send({"type": "websocket.send", "bytes": None, "text": text})
