"""The process that compiles and checks contracts. It interprets schemas and contents that any
member of the room may have written.

The validator lets no other thread of its process run, cannot be interrupted, and can take any time
and memory. So it runs here, apart from the gateway: with limits that the kernel enforces, without
the gateway's environment, and for as long as the gateway keeps its pipe open. The gateway's end of
the pipe is `gatepost.tasks.contract_checks.contract_process`; it imports the messages from here.

Standard input has requests, standard output has one answer to each, in their order. Each is a
length in four bytes and a document in MessagePack; the contract and the content follow a request.
Imports are few, because the process has to start fast.
"""

import os
import resource
import signal
import sys
import time
from collections import OrderedDict
from typing import Any, BinaryIO

import msgspec
from msgspec import Struct

LENGTH_BYTES = 4
MAX_PROBLEM_CHARS = 400
# A process this large after a check ends, and is replaced.
_MAX_RESIDENT_BYTES = 256 * 1024 * 1024
# A longer batch is interrupted between two checks.
_BATCH_SECS = 0.1
_COMPILED = 64
_MAX_EXPRESSION_BYTES = 1024 * 1024
# The most memory that an expression uses to be faster.
_AUTOMATON_BYTES = 128 * 1024
# The description of a problem has a copy of the value for each alternative in the schema.
_MAX_DESCRIBED = 50_000_000
_PR_SET_PDEATHSIG = 1


class CheckRequest(Struct, frozen=True, array_like=True):
    """Check a content of `content_bytes` against the part `input` or `output` of a contract.

    Without a part the contract is only compiled. `contract_bytes` is 0 for a contract that this
    process has had before. Requests with the same `batch` were sent together.
    """

    batch: int
    contract: str
    part: str | None
    contract_bytes: int
    content_bytes: int
    cpu_secs: float


class CheckAnswer(Struct, frozen=True, array_like=True):
    """`problem` is empty for a content that fits. A deferred request has to be sent again."""

    problem: str = ""
    is_deferred: bool = False


class CompiledContract(Struct):
    """The validators of input and output, or the reason without them, and the contract's size."""

    validators: dict[str, Any]
    size: int
    problem: str = ""


def compile_schema(schema: Any) -> Any:
    """Compile a schema; ValueError if it is unusable or refers to anything outside itself."""
    import jsonschema_rs

    # This engine takes linear time.
    engine = jsonschema_rs.RegexOptions(
        size_limit=_MAX_EXPRESSION_BYTES, dfa_size_limit=_AUTOMATON_BYTES
    )
    return jsonschema_rs.Draft202012Validator(schema, offline=True, pattern_options=engine)


def compile_contract(body: bytes) -> CompiledContract:
    validators: dict[str, Any] = {}
    for part in ("input", "output"):
        try:
            validators[part] = compile_schema(msgspec.json.decode(body).get(part, True))
        except (ValueError, RecursionError) as error:
            reason = (str(error).splitlines() or ["unknown"])[0]
            problem = f"the {part} schema cannot be used: {reason}"
            return CompiledContract({}, len(body), problem[:MAX_PROBLEM_CHARS])
    return CompiledContract(validators, len(body))


def check_content(contract: CompiledContract, part: str, content: bytes) -> str:
    """The problem of a content; None if it fits."""
    name = "result" if part == "output" else part
    if contract.problem:
        return f"{name}: cannot be checked: {contract.problem}"
    try:
        value = msgspec.json.decode(content)
        if contract.validators[part].is_valid(value):
            return ""
        problem = _describe_problem(contract, part, content, value)
    except (RecursionError, ValueError) as error:
        problem = f": cannot be checked: {error}"
    return f"{name}{problem}"[:MAX_PROBLEM_CHARS]


def _describe_problem(contract: CompiledContract, part: str, content: bytes, value: Any) -> str:
    import jsonschema_rs

    if len(content) * contract.size > _MAX_DESCRIBED:
        return ": does not fit, and is too large to say where"
    try:
        contract.validators[part].validate(value)
    except jsonschema_rs.ValidationError as error:
        path = "".join(f"[{each!r}]" for each in error.instance_path)
        return f"{path[:150]}: {error.message[:200]}"
    return ": does not fit"


class ContractWorker:
    """Answers requests until its input ends."""

    def __init__(self, source: BinaryIO, target: BinaryIO) -> None:
        self._source = source
        self._target = target
        self._compiled: OrderedDict[str, CompiledContract] = OrderedDict()
        self._texts: dict[str, bytes] = {}
        self._batch = -1
        self._batch_began = 0.0
        # `ru_maxrss` would include the memory of the gateway.
        self._memory = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)

    def serve(self) -> None:
        decode = msgspec.msgpack.Decoder(CheckRequest).decode
        while len(head := self._source.read(LENGTH_BYTES)) == LENGTH_BYTES:
            request = decode(self._source.read(int.from_bytes(head)))
            body = self._source.read(request.contract_bytes)
            content = self._source.read(request.content_bytes)
            self._answer(self._perform(request, body, content))
            if self._resident_bytes() > _MAX_RESIDENT_BYTES:
                return

    def _resident_bytes(self) -> int:
        return int(os.pread(self._memory, 100, 0).split()[1]) * resource.getpagesize()

    def close(self) -> None:
        os.close(self._memory)

    def _answer(self, answer: CheckAnswer) -> None:
        encoded = msgspec.msgpack.encode(answer)
        self._target.write(len(encoded).to_bytes(LENGTH_BYTES) + encoded)
        self._target.flush()

    def _perform(self, request: CheckRequest, body: bytes, content: bytes) -> CheckAnswer:
        if body:
            self._keep_text(request.contract, body)
        if request.batch != self._batch:
            self._batch, self._batch_began = request.batch, time.monotonic()
        elif time.monotonic() - self._batch_began > _BATCH_SECS:
            return CheckAnswer(is_deferred=True)
        # The kernel ends the process when this processor time is used up.
        signal.setitimer(signal.ITIMER_PROF, request.cpu_secs)
        try:
            contract = self._load_contract(request.contract)
            if request.part is None:
                return CheckAnswer(contract.problem)
            return CheckAnswer(check_content(contract, request.part, content))
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    def _keep_text(self, digest: str, body: bytes) -> None:
        """Store a text by the same rules as the gateway, so that both know which texts are here."""
        if len(self._texts) >= _COMPILED:
            self._texts.clear()
            self._compiled.clear()
        self._texts[digest] = body

    def _load_contract(self, digest: str) -> CompiledContract:
        if digest not in self._compiled:
            self._compiled[digest] = compile_contract(self._texts[digest])
        return self._compiled[digest]


class KnownTexts:
    """The gateway's record of the texts that a worker has: both forget all of them when full."""

    def __init__(self) -> None:
        self._digests: set[str] = set()

    def add(self, digest: str) -> bool:
        """Note that a contract is used; returns whether its text has to be sent."""
        if digest in self._digests:
            return False
        if len(self._digests) >= _COMPILED:
            self._digests.clear()
        self._digests.add(digest)
        return True


def limit_resources(memory_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))


def main() -> None:
    """The arguments are the memory limit in bytes and the niceness."""
    import ctypes

    import jsonschema_rs  # noqa: F401  (before the first check, whose time is limited)

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    limit_resources(int(sys.argv[1]))
    os.nice(int(sys.argv[2]))
    ContractWorker(sys.stdin.buffer, sys.stdout.buffer).serve()
    # No cleanup is needed, and freeing memory would take long.
    os._exit(0)


if __name__ == "__main__":
    main()
