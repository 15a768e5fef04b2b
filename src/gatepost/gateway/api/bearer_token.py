"""The bearer token of an `Authorization` header."""


def parse_bearer_token(authorization: str | None) -> str | None:
    """Return the token; None if the header is missing or has another scheme."""
    scheme, _, token = (authorization or "").partition(" ")
    return token if scheme.lower() == "bearer" else None
