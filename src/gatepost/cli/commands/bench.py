"""`gatepost bench`: measures gateways and the pipeline on this machine."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from gatepost import config
from gatepost.cli import output
from gatepost.cli.options import DEFAULT_OUTPUT, Flag, OutputOptions
from gatepost.cli.problems import usage_problem
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
    profile: Annotated[bool, Parameter(negative=())] = False,
    state_dir: Path | None = None,
    options: OutputOptions = DEFAULT_OUTPUT,
) -> None:
    """Measure durable enqueue, push and ack over the WebSocket, in order and as a work queue.

    Starts a fresh gateway on the disk of the state directory. With --profile it measures instead
    where the time of single messages goes, step by step.

    For example:

      gatepost bench mailbox
      gatepost bench mailbox --messages 20000 --json
      gatepost bench mailbox --profile

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
    profile
        Show the steps of an enqueue and an ack, and how long each takes; uses only `singles` and
        `size` of the other options.
    state_dir
        Directory for the measured gateway; it decides which disk is measured.
        Default: $GATEPOST_HOME, else ~/.gatepost.
    """
    from gatepost import bench

    home = _bench_folder(state_dir)
    output.print_hint("Measuring; this takes a while and leaves running gateways alone.")
    if profile:
        _profile_turns(home, singles, size, options)
        return
    wanted = bench.MailboxBenchOptions(
        messages, outstanding, size, senders, singles, workers=workers
    )
    result = bench.bench_mailbox(home, wanted)
    output.print_result(options, result, lambda: _print_mailbox_result(result))


def _profile_turns(home: Path, turns: int, size: int, options: OutputOptions) -> None:
    from rich.console import Console

    from gatepost.bench import turn_profile as measured

    result = measured.profile_turns(home, turns, size)
    console = Console(highlight=False)
    shown = measured.render_profile(result)
    output.print_result(options, result, lambda: console.print(shown))


def bench_pipes(
    *,
    messages: PositiveInt = 40_000,
    outstanding: Annotated[int, Parameter(validator=Number(gte=1, lte=2500))] = 512,
    size: Annotated[int, Parameter(validator=Number(gte=32, lte=60_000))] = 512,
    singles: PositiveInt = 500,
    backlog: PositiveInt | None = None,
    fallbacks: Annotated[bool, Parameter(negative=())] = False,
    state_dir: Path | None = None,
    options: OutputOptions = DEFAULT_OUTPUT,
) -> None:
    """Measure complete lifecycles between two gateways: sent, accepted, processed, closed.

    Starts two fresh gateways on the disk of the state directory.

    For example:

      gatepost bench pipes
      gatepost bench pipes --messages 10000 --json
      gatepost bench pipes --backlog 80000 --fallbacks

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
    backlog
        Measure instead how this number of messages, which waited for a gateway that was away,
        reaches the agent when the gateway comes back.
    fallbacks
        Give the agent of the backlog a fallback, so that each message is an offer.
    state_dir
        Directory for the measured gateways; it decides which disk is measured.
        Default: $GATEPOST_HOME, else ~/.gatepost.
    """
    from rich.console import Console

    from gatepost.bench import pipes as measured

    home = _bench_folder(state_dir)
    if backlog is not None:
        _bench_backlog(home, backlog, outstanding, size, fallbacks, options)
        return
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
        Number of tasks for a self-hosted agent.
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
    sessions: Annotated[int, Parameter(validator=Number(gte=1, lte=50))] = 2,
    agents: Annotated[int, Parameter(validator=Number(gte=2, lte=500))] = 50,
    secs: Annotated[float, Parameter(validator=Number(gte=1, lte=3600))] = 15.0,
    state_dir: Path | None = None,
    options: OutputOptions = DEFAULT_OUTPUT,
) -> None:
    """Measure how long agents wait while strangers, and then sessions, crowd their gateway.

    Starts a fresh gateway on the disk of the state directory. The strangers idle, send heads,
    bodies and garbage, guess tokens and begin WebSockets, all from this machine. The sessions do
    the same at their sockets, over 700 connections each.

    For example:

      gatepost bench hostile
      gatepost bench hostile --connections 300 --secs 5 --json

    Parameters
    ----------
    connections
        Number of hostile connections at a time.
    sessions
        Number of hostile sessions.
    agents
        Number of agents that send messages to each other.
    secs
        Length of each of the three measurements.
    state_dir
        Directory for the measured gateway; it decides which disk is measured.
        Default: $GATEPOST_HOME, else ~/.gatepost.
    """
    from rich.console import Console

    from gatepost.bench import hostile as measured

    home = _bench_folder(state_dir)
    output.print_hint("Measuring; this takes a while and leaves running gateways alone.")
    wanted = measured.HostileBenchOptions(connections, sessions, agents=agents, secs=secs)
    result = measured.bench_hostile(home, wanted)
    console = Console(highlight=False)
    output.print_result(options, result, lambda: console.print(measured.render_result(result)))


def bench_doors(
    *,
    calls: PositiveInt = 500,
    sessions: PositiveInt = 200,
    wait: Annotated[float, Parameter(validator=Number(gte=1, lte=45))] = 20.0,
    state_dir: Path | None = None,
    options: OutputOptions = DEFAULT_OUTPUT,
) -> None:
    """Measure calls of MCP and A2A beside plain operations, and sessions that wait.

    Starts a fresh gateway on the disk of the state directory. It needs the extra:
    pip install 'gatepost[mcp]'. Tasks of A2A are measured if its extra is there too.

    For example:

      gatepost bench doors
      gatepost bench doors --calls 100 --sessions 50 --json

    Parameters
    ----------
    calls
        Number of sends over the WebSocket, and as many through each way to call a tool.
    sessions
        Number of sessions that wait for mail at the same time.
    wait
        Seconds for which their cost is measured.
    state_dir
        Directory for the measured gateway; it decides which disk is measured.
        Default: $GATEPOST_HOME, else ~/.gatepost.
    """
    from rich.console import Console

    from gatepost.bench import doors as measured

    home = _bench_folder(state_dir)
    output.print_hint("Measuring; this takes a while and leaves running gateways alone.")
    result = measured.bench_doors(home, measured.DoorsBenchOptions(calls, sessions, wait))
    console = Console(highlight=False)
    output.print_result(options, result, lambda: console.print(measured.render_result(result)))


def bench_scale(
    *,
    gateways: tuple[Annotated[int, Parameter(validator=Number(gte=2, lte=4000))], ...] = (
        10,
        100,
        1000,
    ),
    agents: PositiveInt = 100_000,
    mesh_nodes: Annotated[int, Parameter(validator=Number(gte=2, lte=1000))] = 100,
    options: OutputOptions = DEFAULT_OUTPUT,
) -> None:
    """Measure what one large room costs each gateway: to join it, and while nothing happens.

    The code of room and mesh is the real one; gateways are only their keys and records.

    For example:

      gatepost bench scale
      gatepost bench scale --gateways 10 --gateways 3000 --agents 30000 --json

    Parameters
    ----------
    gateways
        Number of gateways in the room; once for each room.
    agents
        Number of agents in each room, shared out evenly.
    mesh_nodes
        Number of nodes whose datagrams are exchanged; beyond it, their cost is computed.
    """
    from rich.console import Console

    from gatepost.bench import scale as measured

    output.print_hint("Measuring; this takes a while.")
    result = measured.bench_scale(measured.ScaleOptions(gateways, agents, mesh_nodes))
    console = Console(highlight=False)
    shown = measured.render_scale(result)
    output.print_result(options, result, lambda: console.print(shown))


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
    nodes: PositiveInt | None = None,
    hours: PositiveInt | None = None,
    engines: Annotated[
        list[Literal["local", "sql"]] | None, Parameter(consume_multiple=True)
    ] = None,
    segments: PositiveInt | None = None,
    master: str = "local[*]",
    shape: Literal["one-sender", "many-nodes"] | None = None,
    plan: Flag = False,
    archives: Annotated[list[Path] | None, Parameter(consume_multiple=True)] = None,
    folder: Path | None = None,
    options: OutputOptions = DEFAULT_OUTPUT,
) -> None:
    """Measure the pipeline on synthetic archives: a full run, then one percent more.

    Each run has its own Spark session. The archives are written first, which takes a while, and
    removed at the end; 50 million events need about 6 GB.

    For example:

      gatepost bench pipeline
      gatepost bench pipeline --events 1000000 --json
      gatepost bench pipeline --events 10000000 --hours 168 --engines local sql
      gatepost bench pipeline --shape one-sender --master spark://host:7077
      gatepost bench pipeline --shape many-nodes --nodes 3000 --segments 100
      gatepost bench pipeline --shape many-nodes --nodes 3000 --segments 1000 --plan
      gatepost bench pipeline --archives /data/one-hour /data/a-week

    Parameters
    ----------
    events
        Number of events in the archive; several numbers measure several sizes. Default: 10 and 50
        million.
    nodes
        Number of gateways in the archive. Default: 8, or that of the shape.
    hours
        Hours that the events span. Default: about one event a second and node, a week at most.
    engines
        Engines to make the same tables with, beside Spark with kernels.
    segments
        With --shape: segments of each node that sends.
    master
        Spark master.
    shape
        Measure one run over an archive that is hard to divide instead: one sender with ten million
        deliveries in an hour, or a thousand nodes with a hundred segments each.
    plan
        With --shape: write manifests alone, and only plan a run and hand its work to executors.
    archives
        Measure these archives of `gatepost pipeline synth` instead of writing new ones.
    folder
        Folder for archives and tables. Default: $GATEPOST_HOME, else ~/.gatepost.
    """
    from rich.console import Console

    from gatepost.bench import pipeline as measured

    home = _bench_folder(folder)
    if shape is not None:
        if events or hours or engines or archives:
            raise usage_problem("--shape takes --nodes, --segments and --plan alone")
        _bench_shape(home, shape, (nodes, segments), master, plan, options)
        return
    if segments or plan:
        raise usage_problem("--segments and --plan are for --shape")
    if archives and (events or nodes or hours):
        raise usage_problem("--archives are measured as they are")
    known = measured.PipelineBenchOptions()
    sizes = tuple(events) if events else known.sizes
    wanted = measured.PipelineBenchOptions(
        sizes, nodes or known.nodes, master, hours, tuple(engines or ()), tuple(archives or ())
    )
    with require_pipeline():
        result = measured.bench_pipeline(home, wanted, output.print_hint)
    console = Console(highlight=False)
    output.print_result(options, result, lambda: console.print(measured.render_result(result)))


def _bench_backlog(
    folder: Path,
    messages: int,
    outstanding: int,
    size: int,
    fallbacks: bool,
    options: OutputOptions,
) -> None:
    from rich.console import Console

    from gatepost.bench import backlog

    output.print_hint("Measuring; this takes a while and leaves running gateways alone.")
    result = backlog.bench_backlog(
        folder, backlog.BacklogOptions(messages, size, outstanding, fallbacks)
    )
    console = Console(highlight=False)
    output.print_result(options, result, lambda: console.print(backlog.render_backlog(result)))


def _bench_shape(
    folder: Path,
    name: str,
    size: tuple[int | None, int | None],
    master: str,
    plan: bool,
    options: OutputOptions,
) -> None:
    from rich.console import Console

    from gatepost.bench import pipeline_shapes

    measure = pipeline_shapes.measure_plan if plan else pipeline_shapes.measure_shape
    with require_pipeline():
        shape = pipeline_shapes.shape_named(name, *size)
        result = measure(folder, name, master, output.print_hint, shape)
    console = Console(highlight=False)
    shown = pipeline_shapes.render_shape(result)
    output.print_result(options, result, lambda: console.print(shown))


def _bench_folder(folder: Path | None) -> Path:
    return config.default_settings_path(os.environ).parent if folder is None else folder.absolute()


def _print_mailbox_result(result: "MailboxBenchResult") -> None:
    from rich.console import Console

    from gatepost.bench import render_result

    Console(highlight=False).print(render_result(result))
