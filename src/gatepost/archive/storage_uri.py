"""One form of URI for archives and tables: a path, or file://, s3://, s3a://, gs:// and others.

Endpoint, region and credentials of S3 come from the environment, under the names that all tools of
S3 know: AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN,
AWS_PROFILE. They are never part of a URI.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyarrow import fs

_S3_SCHEMES = ("s3", "s3a", "s3n")
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


def is_local_uri(uri: str) -> bool:
    return "://" not in uri or uri.startswith("file://")


def normalize_uri(uri: str) -> str:
    """The absolute path of a local folder, or the URI under the scheme that all libraries know."""
    if is_local_uri(uri):
        path = unquote(urlsplit(uri).path) if "://" in uri else uri
        return str(Path(path).expanduser().absolute())
    scheme, _, rest = uri.partition("://")
    return f"{'s3' if scheme in _S3_SCHEMES else scheme}://{rest.rstrip('/')}"


def open_filesystem(uri: str, env: Mapping[str, str] = os.environ) -> tuple[fs.FileSystem, str]:
    """The filesystem of a URI or a plain path, and the path in it."""
    known = normalize_uri(uri)
    if is_local_uri(known):
        return fs.LocalFileSystem(), known
    endpoint = s3_endpoint(env)
    if known.startswith("s3://") and endpoint:
        region = env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or "us-east-1"
        address = urlsplit(endpoint)
        filesystem = fs.S3FileSystem(
            endpoint_override=address.netloc, scheme=address.scheme or "https", region=region
        )
        return filesystem, known.removeprefix("s3://")
    found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(known)
    return found


def s3_endpoint(env: Mapping[str, str] = os.environ) -> str | None:
    """The endpoint of an S3 that is not Amazon's."""
    return next((env[name] for name in _ENDPOINT_VARIABLES if env.get(name)), None)
