"""Creates a file in a bucket only if it does not exist: of two concurrent writers, one fails."""

from gatepost.archive.storage_uri import normalize_uri, s3_endpoint


def create_in_bucket(folder: str, name: str, content: bytes) -> bool:
    """Create the file; False if it exists already."""
    import obstore
    from obstore.exceptions import AlreadyExistsError
    from obstore.store import from_url

    uri = normalize_uri(folder)
    plain = (s3_endpoint() or "").startswith("http://")
    store = from_url(uri, client_options={"allow_http": True} if plain else None)
    try:
        obstore.put(store, name, content, mode="create")
    except AlreadyExistsError:
        return False
    return True
