"""A request class that decodes JSON bodies straight into the handler's type."""

from functools import lru_cache
from typing import Any

import msgspec
from litestar import Request

from gatepost.gateway.api.json_input import decode_json


class TypedRequest(Request[Any, Any, Any]):
    """Decodes a body into the type of the handler's `data`, so that payloads stay raw bytes."""

    async def json(self) -> Any:
        body = await self.body()
        wanted = self.route_handler.parsed_fn_signature.parameters["data"].annotation
        return decode_json(_json_decoder(wanted), body)


@lru_cache(64)
def _json_decoder(type: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(type)
