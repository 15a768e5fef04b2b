"""The addresses of resources: mailboxes, mail in hand, blobs and traces."""

_SCHEME = "gatepost://"
MAILBOX, MAIL, BLOB, TRACE = "mailbox", "mail", "blob", "trace"


def mailbox_uri(agent: str) -> str:
    return f"{_SCHEME}{MAILBOX}/{agent}"


def mail_uri(handle: str) -> str:
    return f"{_SCHEME}{MAIL}/{handle}"


def blob_uri(digest: str) -> str:
    return f"{_SCHEME}{BLOB}/{digest}"


def trace_uri(ref: str) -> str:
    return f"{_SCHEME}{TRACE}/{ref}"


def parse_uri(uri: str) -> tuple[str, str]:
    """The sort of a resource and its name; two empty texts if it is not one of ours."""
    if not uri.startswith(_SCHEME):
        return "", ""
    kind, _, name = uri.removeprefix(_SCHEME).partition("/")
    return kind, name
