"""The text with which a machine joins the mesh without an invite: `gpm1.<genesis>.<secrets>`.

It carries the fingerprint of the genesis, the cluster token and the join secret. With the
fingerprint the machine verifies the descriptor of the mesh, so it sends the secrets to members
only. The text is valid for any number of machines, until the mesh secrets are rotated.
"""

import re

from gatepost.access.mesh_secrets import MeshSecrets
from gatepost.access.tokens import decode_b64, encode_b64
from gatepost.errors import InvalidToken
from gatepost.wire.agent_tokens import SecretValue

_SECRET_BYTES = 32
_PATTERN = re.compile(r"gpm1\.([0-9a-f]{32})\.([A-Za-z0-9_-]{86})")


class JoinSecret(SecretValue, frozen=True):
    genesis_fingerprint: str
    cluster_token: str
    join_secret: str

    @classmethod
    def of_mesh(cls, genesis_fingerprint: str, secrets: MeshSecrets) -> "JoinSecret":
        return cls(genesis_fingerprint, secrets.cluster_token, secrets.join_secret)

    @property
    def text(self) -> str:
        both = decode_b64(self.cluster_token) + decode_b64(self.join_secret)
        return f"gpm1.{self.genesis_fingerprint}.{encode_b64(both)}"


def parse_join_secret(text: str) -> JoinSecret:
    found = _PATTERN.fullmatch(text.strip())
    if found is None:
        raise InvalidToken("this is not a join secret; it starts with `gpm1.` and is one line")
    both = decode_b64(found[2])
    token, secret = encode_b64(both[:_SECRET_BYTES]), encode_b64(both[_SECRET_BYTES:])
    return JoinSecret(found[1], token, secret)
