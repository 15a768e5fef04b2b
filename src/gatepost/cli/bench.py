"""`gatepost bench`: measures gateways and the pipeline on this machine."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from gatepost import config
from gatepost.cli import output
from gatepost.cli.options import OUTPUT, Output
from gatepost.cli.pipeline import needed

if TYPE_CHECKING:
    from gatepost.bench import Result

Some = Annotated[int, Parameter(validator=Number(gte=1))]


def mailbox(
    *,
    messages: Some = 100_000,
    outstanding: Annotated[int, Parameter(validator=Number(gte=1, lte=2500))] = 256,
    size: Annotated[int, Parameter(validator=Number(gte=32, lte=65_536))] = 512,
    senders: Some = 1,
    singles: Some = 2000,
    state_dir: Path | None = None,
    options: Output = OUTPUT,
) -> None:
    """Measure durable enqueue, push and ack.

    Parameters
    ----------
    messages
        Number of messages for throughput, sent with many outstanding.
    outstanding
        Number of unanswered messages at a time.
    size
        Bytes of each payload.
    senders
        Number of sending agents.
    singles
        Number of messages for latency, sent one at a time.
    state_dir
        Directory for the measured gateway; it decides which disk is measured.
        Default: $GATEPOST_HOME, else ~/.gatepost.
    """
    from gatepost import bench

    home = _home(state_dir)
    output.hint("Measuring; this takes a while and leaves running gateways alone.")
    wanted = bench.Options(messages, outstanding, size, senders, singles)
    result = bench.bench(home, wanted)
    output.show(options, result, lambda: _print(result))


def pipes(
    *,
    messages: Some = 40_000,
    outstanding: Annotated[int, Parameter(validator=Number(gte=1, lte=2500))] = 512,
    size: Annotated[int, Parameter(validator=Number(gte=32, lte=60_000))] = 512,
    singles: Some = 500,
    state_dir: Path | None = None,
    options: Output = OUTPUT,
) -> None:
    """Measure complete lifecycles between two gateways.

    Parameters
    ----------
    messages
        Number of messages for throughput, sent with many outstanding.
    outstanding
        Number of messages the first gateway has not answered, at a time.
    size
        Bytes of each payload.
    singles
        Number of messages for latency, sent one at a time.
    state_dir
        Directory for the measured gateways; it decides which disk is measured.
        Default: $GATEPOST_HOME, else ~/.gatepost.
    """
    from rich.console import Console

    from gatepost.bench import pipes as measured

    home = _home(state_dir)
    output.hint("Measuring; this takes a while and leaves running gateways alone.")
    result = measured.bench(home, measured.Options(messages, outstanding, size, singles))
    console = Console(highlight=False)
    output.show(options, result, lambda: console.print(measured.render(result)))


def pipeline(
    *,
    events: Annotated[list[Some] | None, Parameter(consume_multiple=True)] = None,
    nodes: Some = 8,
    master: str = "local[*]",
    folder: Path | None = None,
    options: Output = OUTPUT,
) -> None:
    """Measure the pipeline on synthetic archives.

    Parameters
    ----------
    events
        Number of events in the archive; several numbers measure several sizes. Default: 10 and 50
        million.
    nodes
        Number of gateways in the archive.
    master
        Spark master.
    folder
        Folder for archives and tables. Default: $GATEPOST_HOME, else ~/.gatepost.
    """
    from rich.console import Console

    from gatepost.bench import pipeline as measured

    home = _home(folder)
    sizes = tuple(events) if events else measured.Options().sizes
    wanted = measured.Options(sizes, nodes, master)
    with needed():
        result = measured.bench(home, wanted, output.hint)
    console = Console(highlight=False)
    output.show(options, result, lambda: console.print(measured.render(result)))


def _home(folder: Path | None) -> Path:
    return config.default_settings_path(os.environ).parent if folder is None else folder.absolute()


def _print(result: "Result") -> None:
    from rich.console import Console

    from gatepost.bench import render

    Console(highlight=False).print(render(result))
