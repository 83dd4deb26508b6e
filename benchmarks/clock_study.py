"""What is an accuracy worth on phones and in hospitals: virtual seconds and megabytes to a target?

    python -m benchmarks.clock_study FOLDER TARGET [FILE.csv]

FOLDER has a comparison for each mix of devices and way to run, named MIX-WAY, as the commands of
docs/clock.md leave them. Prints the table of that page: means and 95 % intervals; a number stands
where every seed reached the target (EMA, percent). The file gets the single runs.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from itertools import accumulate
from pathlib import Path
from statistics import fmean, stdev

from scipy import stats

import dcfl
from benchmarks.bench.measure import table

WAYS = {
    "rounds": "rounds",
    "deadline": "deadline 5 s",
    "over": "130 % asked",
    "fedbuff": "FedBuff of 5",
}
Cost = tuple[float, float] | None  # virtual seconds and megabytes, if the target was reached


def cost(run: dcfl.RecordedRun, target: float) -> Cost:
    sent = accumulate((row.bytes_up + row.bytes_down) / 1e6 for row in run.rounds)
    for row, megabytes in zip(run.rounds, sent, strict=True):
        if (row.ema_accuracy or 0) >= target:
            return row.virtual_time or 0.0, megabytes
    return None


def with_interval(values: list[float], digits: int) -> str:
    if len(values) == 1:
        return f"{values[0]:,.{digits}f}"
    half = stats.t.ppf(0.975, len(values) - 1) * stdev(values) / len(values) ** 0.5
    return f"{fmean(values):,.{digits}f} ± {half:,.{digits}f}"


def main(folder: Path, target: float, file: Path | None = None) -> None:
    rows, single = [], ["devices,way,method,run,seconds,megabytes,ema"]
    for study in sorted(folder.iterdir(), key=lambda path: path.name.split("-")[0]):
        mix, _, way = study.name.partition("-")
        runs = defaultdict(list)
        for path in sorted(study.glob("*-seed*")):
            runs[path.name.rpartition("-seed")[0]].append(dcfl.open_run(path))
        for method, of_method in runs.items():
            costs = [cost(run, target) for run in of_method]
            last = [run.rounds[-1].ema_accuracy or 0.0 for run in of_method]
            for run, spent, ema in zip(of_method, costs, last, strict=True):
                numbers = ",".join(f"{one:.3f}" for one in spent) if spent else ","
                single.append(f"{mix},{way},{method},{run.folder.name},{numbers},{ema:.3f}")
            reached = [one for one in costs if one is not None]
            seconds = megabytes = f"{len(reached)} of {len(costs)} seeds"
            if len(reached) == len(costs):
                seconds = with_interval([one[0] for one in reached], 0)
                megabytes = with_interval([one[1] for one in reached], 0)
            rows.append([mix, WAYS[way], method, seconds, megabytes, with_interval(last, 1)])
    to = f"to {target:g} %"
    print(table(["devices", "way", "method", f"s {to}", f"MB {to}", "EMA in the end"], rows))
    if file is not None:
        file.write_text("\n".join(single) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None)
