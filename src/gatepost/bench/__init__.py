"""The measurements behind `gatepost bench`."""

from gatepost.bench.fsync import FsyncResult, measure_fsync
from gatepost.bench.mailbox import (
    MailboxBenchOptions,
    MailboxBenchResult,
    bench_mailbox,
    measure_gateway,
    render_result,
)

__all__ = [
    "FsyncResult",
    "MailboxBenchOptions",
    "MailboxBenchResult",
    "bench_mailbox",
    "measure_fsync",
    "measure_gateway",
    "render_result",
]
