"""The measurements behind `gatepost bench`."""

from gatepost.bench.fsync import Fsync, measure_fsync
from gatepost.bench.mailbox import Options, Result, bench, render, run

__all__ = ["Fsync", "Options", "Result", "bench", "measure_fsync", "render", "run"]
