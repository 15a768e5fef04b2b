"""Types of requests and of route parameters, shared by all routes."""

from typing import Annotated, Any

from litestar import Request, WebSocket
from litestar.params import FromPath, FromQuery, QueryParameter

AnyRequest = Request[Any, Any, Any]
AnyWebSocket = WebSocket[Any, Any, Any]

PathName = FromPath[str]
QueryText = FromQuery[str]
OptionalText = FromQuery[str | None]
OptionalFlag = FromQuery[bool | None]
PageSize = Annotated[int, QueryParameter(ge=1, le=1000)]
WaitSecs = Annotated[float, QueryParameter(ge=0, le=3600)]
RoomWaitSecs = Annotated[float, QueryParameter(ge=0, le=60)]
