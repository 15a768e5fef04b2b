"""`gatepost bench`: how fast a gateway is on this machine."""

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
        How many, with many outstanding.
    outstanding
        How many are under way at a time.
    size
        Bytes of each payload.
    senders
        How many agents they are from.
    singles
        How many, one at a time.
    state_dir
        Where to make the gateway that is measured, and with that on which disk.
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
    """Measure whole lifecycles between two gateways.

    Parameters
    ----------
    messages
        How many, with many outstanding.
    outstanding
        How many are under way to the first gateway at a time.
    size
        Bytes of each payload.
    singles
        How many, one at a time.
    state_dir
        Where to make the gateways that are measured, and with that on which disk.
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
        How many, once for every size. Default: 10 and 50 million.
    nodes
        How many gateways they are from.
    master
        Where Spark runs.
    folder
        Where to write archives and tables. Default: $GATEPOST_HOME, else ~/.gatepost.
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
    return config.default_path(os.environ).parent if folder is None else folder.absolute()


def _print(result: "Result") -> None:
    from rich.console import Console

    from gatepost.bench import render

    Console(highlight=False).print(render(result))
