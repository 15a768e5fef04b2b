"""Route decorators that document the error responses every route can give."""

from functools import partial

import litestar
from litestar.openapi.datastructures import ResponseSpec

from gatepost.wire.operations import Failure

_STATUS_MEANINGS = {
    400: "The request cannot be understood.",
    401: "The token is missing or wrong.",
    403: "The caller may not do this.",
    404: "There is no such thing here.",
    405: "Not a method of this path.",
    409: "The request conflicts with the present state.",
    413: "The body or the payload is too large.",
    429: "Too many requests; `retry-after` says when to try again.",
    503: "The gateway cannot write at the moment.",
}
ERROR_RESPONSES = {
    status: ResponseSpec(Failure, description=meaning, generate_examples=False)
    for status, meaning in _STATUS_MEANINGS.items()
}

delete = partial(litestar.delete, responses=ERROR_RESPONSES)
get = partial(litestar.get, responses=ERROR_RESPONSES)
post = partial(litestar.post, responses=ERROR_RESPONSES)
put = partial(litestar.put, responses=ERROR_RESPONSES)
