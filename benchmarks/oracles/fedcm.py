"""Runs woodenchild95/FL-Simulator: FedCM's server and clients for four rounds."""

from __future__ import annotations

from benchmarks.oracles.fedspeed import COHORTS, REPOSITORY, simulate
from benchmarks.oracles.problem import write

CASE = {"alpha": 0.3}


def main() -> None:
    path, rounds = simulate("FedCM", **CASE)
    files = ["client/fedcm.py", "server/FedCM.py", "server/server.py"]
    write("fedcm", REPOSITORY, path, files, cohorts=COHORTS, rounds=rounds)


if __name__ == "__main__":
    main()
