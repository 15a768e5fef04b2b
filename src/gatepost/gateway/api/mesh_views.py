"""API bodies of the mesh; the command line decodes the same types."""

from gatepost.agent_tokens import SecretValue


class MeshSecretView(SecretValue, frozen=True):
    """`join_secret` is the text for `gatepost join --via`; whoever has it can join."""

    version: int
    rotated_by: str
    join_secret: str
