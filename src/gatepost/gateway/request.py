"""Request bodies, decoded once and straight into their type."""

from functools import lru_cache
from typing import Any

import msgspec
from litestar import Request

from gatepost.errors import InvalidRequest


class TypedRequest(Request[Any, Any, Any]):
    """Decodes JSON into the handler's own body type, so that payloads stay the bytes they are."""

    async def json(self) -> Any:
        body = await self.body()
        wanted = self.route_handler.parsed_fn_signature.parameters["data"].annotation
        try:
            return _decoder(wanted).decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequest(str(error)) from None


@lru_cache(64)
def _decoder(type: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(type)
