"""Types of requests and of route parameters, shared by all routes.

Clients may write the name of a query parameter in either spelling. An unknown one is refused.
"""

from functools import cache
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlencode

from litestar import Request, WebSocket
from litestar.constants import RESERVED_KWARGS
from litestar.handlers import BaseRouteHandler
from litestar.params import FromPath, FromQuery, QueryParameter

from gatepost.errors import InvalidRequest
from gatepost.listening.field_names import spellings, take_name

AnyRequest = Request[Any, Any, Any]
AnyWebSocket = WebSocket[Any, Any, Any]

PathName = FromPath[str]
QueryText = FromQuery[str]
OptionalText = FromQuery[str | None]
OptionalFlag = FromQuery[bool | None]
PageSize = Annotated[int, QueryParameter(ge=1, le=1000)]
WaitSecs = Annotated[float, QueryParameter(ge=0, le=3600)]
# How many changes the caller has seen; -1: none.
SeenCount = Annotated[int, QueryParameter(ge=-1)]
RoomWaitSecs = Annotated[float, QueryParameter(ge=0, le=60)]
_API_PREFIX = "/v1"


async def rename_query_parameters(request: AnyRequest) -> None:
    """Replace the names in the query by those of the handler, before that reads them."""
    query = request.scope["query_string"]
    if not query or not request.scope["path"].startswith(_API_PREFIX):
        return
    names = _query_names(request.route_handler, tuple(request.path_params))
    renamed: dict[str, str] = {}
    for given, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        name = take_name(given, names, renamed)
        if name not in names:
            raise InvalidRequest(f"unknown query parameter `{given}`")
        renamed[name] = value
    request.scope["query_string"] = urlencode(renamed).encode()


@cache
def _query_names(handler: BaseRouteHandler, path_names: tuple[str, ...]) -> dict[str, str]:
    """The query parameters of a handler by all their spellings."""
    parameters = handler.parsed_fn_signature.parameters
    names = []
    for name, parameter in parameters.items():
        if name not in RESERVED_KWARGS and name not in path_names:
            names.append(getattr(parameter.kwarg_definition, "name", None) or name)
    return spellings(names)
