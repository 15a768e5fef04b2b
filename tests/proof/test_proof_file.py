"""The file of a proof has one spelling, bounds, and a code for everything else."""

import pytest
from msgspec.structs import replace

from gatepost.errors import ProofRejected
from gatepost.proof.proof_file import MAX_PROOF_BYTES, ProofFile, decode_proof, encode_proof
from tests.proof.harness import ProofWorld


@pytest.fixture(scope="module")
def world() -> ProofWorld:
    return ProofWorld()


@pytest.fixture(scope="module")
def file(world: ProofWorld) -> ProofFile:
    return world.prove(world.deliver())


def test_a_file_that_is_decoded_is_encoded_to_the_same_bytes(
    world: ProofWorld, file: ProofFile
) -> None:
    data = world.write(file)
    assert encode_proof(decode_proof(data)) == data


@pytest.mark.parametrize("change", ["cut", "longer", "spaces", "other_order"])
def test_a_file_has_one_spelling(world: ProofWorld, file: ProofFile, change: str) -> None:
    data = world.write(file)
    changed = {
        "cut": data[:-1],
        "longer": data + b"\n",
        "spaces": data.replace(b":", b": ", 1),
        "other_order": b'{"format":"gatepost-proof/1",'
        + data[1:].replace(b'"format":"gatepost-proof/1",', b"", 1),
    }
    with pytest.raises(ProofRejected):
        decode_proof(changed[change])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'"' * 9,
        b"\xff\xfe",
        b"[" * 200_000,
        b'{"format":' + b'{"a":' * 100_000,
        b'{"format":"gatepost-proof/2"}',
        bytes(MAX_PROOF_BYTES + 1),
    ],
    ids=["empty", "null", "list", "object", "quotes", "bytes", "deep", "nested", "version", "huge"],
)
def test_hostile_files_are_rejected_with_a_code(data: bytes) -> None:
    with pytest.raises(ProofRejected) as caught:
        decode_proof(data)
    assert caught.value.code == "proof_rejected"
    assert len(caught.value.message) < 500


def test_fields_of_wrong_types_are_rejected(world: ProofWorld, file: ProofFile) -> None:
    data = world.write(file)
    for name in (b"chains", b"eventId", b"genesis", b"groups", b"madeAt", b"seen", b"signature"):
        for value in (b"7", b"null", b"[[[]]]", b'{"a":1}', b'"x"', b"1e400"):
            changed = data.replace(b'"' + name + b'":', b'"' + name + b'":' + value + b',"z":', 1)
            with pytest.raises(ProofRejected):
                decode_proof(changed)


def test_a_proof_that_is_too_large_is_not_written(world: ProofWorld, file: ProofFile) -> None:
    big = [replace(group, digests=bytes(MAX_PROOF_BYTES)) for group in file.groups]
    with pytest.raises(ProofRejected, match="at most"):
        encode_proof(replace(file, groups=big))
