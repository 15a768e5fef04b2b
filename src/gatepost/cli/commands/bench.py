"""`gatepost bench`: measures gateways and the pipeline on this machine."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from gatepost import config
from gatepost.cli import output
from gatepost.cli.options import DEFAULT_OUTPUT, OutputOptions
from gatepost.cli.spark_jobs import require_pipeline

if TYPE_CHECKING:
    from gatepost.bench import MailboxBenchResult

PositiveInt = Annotated[int, Parameter(validator=Number(gte=1))]


def bench_mailbox(
    *,
    messages: PositiveInt = 100_000,
    outstanding: Annotated[int, Parameter(validator=Number(gte=1, lte=2500))] = 256,
    size: Annotated[int, Parameter(validator=Number(gte=32, lte=65_536))] = 512,
    senders: PositiveInt = 1,
    singles: PositiveInt = 2000,
    workers: Annotated[int, Parameter(validator=Number(gte=1, lte=64))] = 4,
    state_dir: Path | None = None,
    options: OutputOptions = DEFAULT_OUTPUT,
) -> None:
    """Measure durable enqueue, push and ack over the WebSocket, in order and as a work queue.

    Starts a fresh gateway on the disk of the state directory.

    For example:

      gatepost bench mailbox
      gatepost bench mailbox --messages 20000 --json

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
    workers
        Number of workers that share the messages of one sender.
    state_dir
        Directory for the measured gateway; it decides which disk is measured.
        Default: $GATEPOST_HOME, else ~/.gatepost.
    """
    from gatepost import bench

    home = _bench_folder(state_dir)
    output.print_hint("Measuring; this takes a while and leaves running gateways alone.")
    wanted = bench.MailboxBenchOptions(
        messages, outstanding, size, senders, singles, workers=workers
    )
    result = bench.bench_mailbox(home, wanted)
    output.print_result(options, result, lambda: _print_mailbox_result(result))


def bench_pipes(
    *,
    messages: PositiveInt = 40_000,
    outstanding: Annotated[int, Parameter(validator=Number(gte=1, lte=2500))] = 512,
    size: Annotated[int, Parameter(validator=Number(gte=32, lte=60_000))] = 512,
    singles: PositiveInt = 500,
    state_dir: Path | None = None,
    options: OutputOptions = DEFAULT_OUTPUT,
) -> None:
    """Measure complete lifecycles between two gateways: sent, accepted, processed, closed.

    Starts two fresh gateways on the disk of the state directory.

    For example:

      gatepost bench pipes
      gatepost bench pipes --messages 10000 --json

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

    home = _bench_folder(state_dir)
    output.print_hint("Measuring; this takes a while and leaves running gateways alone.")
    result = measured.bench_pipes(
        home, measured.PipesBenchOptions(messages, outstanding, size, singles)
    )
    console = Console(highlight=False)
    output.print_result(options, result, lambda: console.print(measured.render_result(result)))


def bench_tasks(
    *,
    sessions: PositiveInt = 200,
    at_once: Annotated[int, Parameter(validator=Number(gte=1, lte=256))] = 8,
    tasks: PositiveInt = 5000,
    outstanding: Annotated[int, Parameter(validator=Number(gte=1, lte=1000))] = 1000,
    state_dir: Path | None = None,
    options: OutputOptions = DEFAULT_OUTPUT,
) -> None:
    """Measure tasks: in sessions, by a running agent, and between two gateways.

    Sessions are measured beside bare child processes of the same command. Starts two
    fresh gateways on the disk of the state directory.

    For example:

      gatepost bench tasks
      gatepost bench tasks --sessions 50 --tasks 1000 --json

    Parameters
    ----------
    sessions
        Number of tasks that get a session.
    at_once
        Number of sessions at a time.
    tasks
        Number of tasks for an agent that runs by itself.
    outstanding
        Number of those that have not ended, at a time.
    state_dir
        Directory for the measured gateways; it decides which disk is measured.
        Default: $GATEPOST_HOME, else ~/.gatepost.
    """
    from rich.console import Console

    from gatepost.bench import tasks as measured

    home = _bench_folder(state_dir)
    output.print_hint("Measuring; this takes a while and leaves running gateways alone.")
    wanted = measured.TasksBenchOptions(sessions, at_once, tasks, outstanding)
    result = measured.bench_tasks(home, wanted)
    console = Console(highlight=False)
    output.print_result(options, result, lambda: console.print(measured.render_result(result)))


def bench_hostile(
    *,
    connections: PositiveInt = 2000,
    agents: Annotated[int, Parameter(validator=Number(gte=2, lte=500))] = 50,
    secs: Annotated[float, Parameter(validator=Number(gte=1, lte=3600))] = 15.0,
    state_dir: Path | None = None,
    options: OutputOptions = DEFAULT_OUTPUT,
) -> None:
    """Measure how long agents wait while strangers crowd their gateway.

    Starts a fresh gateway on the disk of the state directory. The strangers idle, send heads,
    bodies and garbage, guess tokens and begin WebSockets, all from this machine.

    For example:

      gatepost bench hostile
      gatepost bench hostile --connections 300 --secs 5 --json

    Parameters
    ----------
    connections
        Number of hostile connections at a time.
    agents
        Number of agents that send messages to each other.
    secs
        Length of each of the two measurements.
    state_dir
        Directory for the measured gateway; it decides which disk is measured.
        Default: $GATEPOST_HOME, else ~/.gatepost.
    """
    from rich.console import Console

    from gatepost.bench import hostile as measured

    home = _bench_folder(state_dir)
    output.print_hint("Measuring; this takes a while and leaves running gateways alone.")
    wanted = measured.HostileBenchOptions(connections, agents, secs=secs)
    result = measured.bench_hostile(home, wanted)
    console = Console(highlight=False)
    output.print_result(options, result, lambda: console.print(measured.render_result(result)))


def bench_mesh(
    *,
    datagrams: PositiveInt = 20_000,
    nodes: Annotated[int, Parameter(validator=Number(gte=3, lte=200))] = 50,
    kills: PositiveInt = 100,
    process_kills: Annotated[int, Parameter(validator=Number(gte=0, lte=10_000))] = 10,
    state_dir: Path | None = None,
    options: OutputOptions = DEFAULT_OUTPUT,
) -> None:
    """Measure the mesh: datagrams judged, the cost of idle nodes, gossip, and takeovers.

    The nodes are real, with real keys, and share this process. Takeovers happen on virtual time,
    and between three fresh gateways on the disk of the state directory. They are stated in units
    of suspicion and grace.

    For example:

      gatepost bench mesh
      gatepost bench mesh --process-kills 100
      gatepost bench mesh --nodes 20 --kills 10 --process-kills 0 --json

    Parameters
    ----------
    datagrams
        Number of datagrams of each sort.
    nodes
        Number of nodes of the idle mesh.
    kills
        Number of publishers that die on virtual time.
    process_kills
        Number of real gateways that are killed while they are the publisher. Each takes a few
        seconds.
    state_dir
        Directory for the measured gateways; it decides which disk is measured.
        Default: $GATEPOST_HOME, else ~/.gatepost.
    """
    from rich.console import Console

    from gatepost.bench import mesh as measured

    home = _bench_folder(state_dir)
    output.print_hint("Measuring; this takes a while and leaves running gateways alone.")
    wanted = measured.MeshBenchOptions(datagrams, nodes, kills=kills, process_kills=process_kills)
    result = measured.bench_mesh(home, wanted)
    console = Console(highlight=False)
    output.print_result(options, result, lambda: console.print(measured.render_result(result)))


def bench_pipeline(
    *,
    events: Annotated[list[PositiveInt] | None, Parameter(consume_multiple=True)] = None,
    nodes: PositiveInt = 8,
    master: str = "local[*]",
    shape: Literal["one-sender", "many-nodes"] | None = None,
    folder: Path | None = None,
    options: OutputOptions = DEFAULT_OUTPUT,
) -> None:
    """Measure the pipeline on synthetic archives: a full run, then one percent more.

    Each run has its own Spark session. The archives are written first, which takes a while, and
    removed at the end; 50 million events need about 6 GB.

    For example:

      gatepost bench pipeline
      gatepost bench pipeline --events 1000000 --json
      gatepost bench pipeline --shape one-sender --master spark://host:7077

    Parameters
    ----------
    events
        Number of events in the archive; several numbers measure several sizes. Default: 10 and 50
        million.
    nodes
        Number of gateways in the archive.
    master
        Spark master.
    shape
        Measure one run over an archive that is hard to divide instead: one sender with ten million
        deliveries in an hour, or a thousand nodes with a hundred segments each.
    folder
        Folder for archives and tables. Default: $GATEPOST_HOME, else ~/.gatepost.
    """
    from rich.console import Console

    from gatepost.bench import pipeline as measured

    home = _bench_folder(folder)
    if shape is not None:
        _bench_shape(home, shape, master, options)
        return
    sizes = tuple(events) if events else measured.PipelineBenchOptions().sizes
    wanted = measured.PipelineBenchOptions(sizes, nodes, master)
    with require_pipeline():
        result = measured.bench_pipeline(home, wanted, output.print_hint)
    console = Console(highlight=False)
    output.print_result(options, result, lambda: console.print(measured.render_result(result)))


def _bench_shape(folder: Path, shape: str, master: str, options: OutputOptions) -> None:
    from rich.console import Console

    from gatepost.bench import pipeline_shapes

    with require_pipeline():
        result = pipeline_shapes.measure_shape(folder, shape, master, output.print_hint)
    console = Console(highlight=False)
    shown = pipeline_shapes.render_shape(result)
    output.print_result(options, result, lambda: console.print(shown))


def _bench_folder(folder: Path | None) -> Path:
    return config.default_settings_path(os.environ).parent if folder is None else folder.absolute()


def _print_mailbox_result(result: "MailboxBenchResult") -> None:
    from rich.console import Console

    from gatepost.bench import render_result

    Console(highlight=False).print(render_result(result))
