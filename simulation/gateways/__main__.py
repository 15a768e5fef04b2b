"""Replay a run: `python -m simulation.gateways --seed 7 --trace`."""

import argparse
import sys

from simulation.gateways.run import RunShape, simulate


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    shape = RunShape(
        options.nodes,
        options.messages,
        options.agents,
        options.faults,
        options.over_ms,
        options.kinds.split(","),
        options.tasks,
    )
    failed = 0
    for seed in range(options.seed, options.seed + options.seeds):
        trace = print if options.trace or options.frames else None
        result = simulate(seed, shape, trace, options.frames)
        print(f"seed {seed}: {result.verdict}")
        failed += not result.verdict.ok
    return int(failed > 0)


def _parser() -> argparse.ArgumentParser:
    usual = RunShape()
    parser = argparse.ArgumentParser("python -m simulation.gateways", description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--seeds", type=int, default=1, help="how many, from this one on")
    parser.add_argument("--nodes", type=int, default=usual.nodes)
    parser.add_argument("--messages", type=int, default=usual.messages)
    parser.add_argument("--tasks", type=int, default=usual.tasks)
    parser.add_argument("--agents", type=int, default=usual.agents)
    parser.add_argument("--faults", type=int, default=usual.faults)
    parser.add_argument("--over-ms", type=int, default=usual.over_ms)
    parser.add_argument("--kinds", default=",".join(usual.kinds), help="of faults, with commas")
    parser.add_argument("--trace", action="store_true", help="print what happens")
    parser.add_argument("--frames", action="store_true", help="and every frame")
    return parser


if __name__ == "__main__":
    sys.exit(main())
