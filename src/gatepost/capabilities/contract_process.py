"""A process that checks one large content against its contract, and then ends.

The validator lets no other thread of its process run, and cannot be interrupted. A large content is
therefore checked here, with limits on time and memory that the kernel keeps.

Standard input has the length of the contract in eight bytes, the contract, and the content.
Standard output gets the problem, or nothing if the content fits.
"""

import resource
import sys

from gatepost.capabilities.contract import Contract, compile_contract, encode_contract
from gatepost.errors import ContractMismatch

CPU_SECS = 10
MEMORY_BYTES = 2 * 1024**3
_LENGTH_BYTES = 8


def encode_check(contract: Contract, content: bytes) -> bytes:
    body = encode_contract(contract.document)
    return len(body).to_bytes(_LENGTH_BYTES) + body + content


def run_check(given: bytes, part: str) -> str:
    """The problem of a content; nothing if it fits."""
    end = _LENGTH_BYTES + int.from_bytes(given[:_LENGTH_BYTES])
    contract = compile_contract(given[_LENGTH_BYTES:end])
    schema = contract.input if part == "input" else contract.output
    try:
        schema.check(given[end:])
    except ContractMismatch as error:
        return error.message
    except MemoryError:
        return f"{part}: takes too much memory to check"
    return ""


def _limit_resources() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECS, CPU_SECS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    _limit_resources()
    sys.stdout.write(run_check(sys.stdin.buffer.read(), sys.argv[1]))
