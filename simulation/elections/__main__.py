"""`python -m simulation.elections --seed N --seeds K` runs K seeds from N on."""

import argparse

from simulation.elections.run import simulate_mesh


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1)
    chosen = parser.parse_args()
    failed = 0
    for seed in range(chosen.seed, chosen.seed + chosen.seeds):
        result = simulate_mesh(seed)
        if result.faults:
            failed += 1
            print(f"seed {seed}, {result.nodes} nodes:", *result.faults, sep="\n  ")
    print(f"{chosen.seeds} seeds, {failed} with faults")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
