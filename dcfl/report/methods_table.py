"""The table of methods: its columns for a page, LaTeX, a terminal and a notebook."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from dcfl.comparisons.groups import Group, setting
from dcfl.comparisons.pairs import Pair
from dcfl.comparisons.standing import Standing
from dcfl.report import text
from dcfl.report.document import Table
from dcfl.runs.evaluations import ENOUGH_CLIENTS, worst_words

ShowCell = Callable[[Group], str]


def methods_table(
    standing: Standing, groups: Sequence[Group], names: Sequence[str], short: bool = False
) -> Table:
    """A row per group, with the columns of these names. `short`: for a terminal or a notebook.
    Differences are to the first group, seed by seed."""

    def spread(quantity: str) -> ShowCell:
        return lambda group: text.with_deviation(group.spread(quantity))

    def mean(digits: int, unit: float, *quantities: str) -> ShowCell:
        return lambda group: text.number(
            sum(group.spread(quantity).mean for quantity in quantities) / unit, digits
        )

    def gain(show: Callable[[Pair], str]) -> ShowCell:
        def cell(group: Group) -> str:
            pair = standing.gain(group)
            return show(pair) if pair else "" if short else "–"

        return cell

    def gained(pair: Pair) -> str:
        return f"{pair.paired.spread:+}" if short else text.signed(pair.paired.spread.mean)

    def interval(pair: Pair) -> str:
        return "–" if pair.paired.interval is None else text.interval(pair.paired.interval)

    def largest(*quantities: str) -> float:
        means = [group.spread(one).mean for group in groups for one in quantities]
        return max((mean for mean in means if not math.isnan(mean)), default=0.0)

    unit, slowest = text.data_unit(largest("bytes_up", "bytes_down")), largest("seconds")
    comma = "" if short else ","
    measure = standing.yardstick.name
    against = (
        f"{'vs' if short else f'{measure[0].upper()}{measure[1:]} against'} {groups[0].method}"
    )
    columns: dict[str, tuple[str, ShowCell]] = {
        "method": ("Method", lambda group: group.method),
        "label": ("method" if short else "Method", lambda group: group.label),
        "seeds": ("seeds" if short else "Seeds", lambda group: str(group.seeds)),
        "MAX": (f"MAX{comma} %", spread("max_accuracy")),
        "EMA": (f"EMA{comma} %", spread("ema_accuracy")),
        "gain": (against, gain(gained)),
        "gain and interval": (
            against,
            gain(lambda pair: f"{gained(pair)} {interval(pair)}".removesuffix(" –")),
        ),
        "interval": ("95 % interval", gain(interval)),
        "p": ("p", gain(lambda pair: text.p_cell(pair.p_value))),
        "w/t/l": ("w/t/l", gain(lambda pair: text.wins_ties_losses(pair.paired))),
        "final": ("final %" if short else "Final, %", spread("final_accuracy")),
        "own final": ("clients’ own %" if short else "Clients’ own, %", spread("own_accuracy")),
        "worst": (f"{worst_clients(groups).capitalize()}, %", spread("worst_decile_accuracy")),
        "worst mean": ("worst %", mean(1, 1, "worst_decile_accuracy")),
        "up": (f"Sent up, {unit.name}", mean(2, unit.bytes, "bytes_up")),
        "down": (f"Sent down, {unit.name}", mean(2, unit.bytes, "bytes_down")),
        "sent": ("MB", mean(0, 1e6, "bytes_up", "bytes_down")),
        "time": ("Time, s", mean(1 if slowest < 1000 else 0, 1, "seconds")),
        "seconds": ("s", mean(0, 1, "seconds")),
    }
    chosen = [columns[name] for name in names]
    rows = [[cell(group) for _, cell in chosen] for group in groups]
    return Table([title for title, _ in chosen], rows)


def worst_clients(groups: Sequence[Group]) -> str:
    counts = [setting(run, "data.clients") for group in groups for run in group.runs]
    known = [count for count in counts if isinstance(count, int)]
    return worst_words(max(known, default=ENOUGH_CLIENTS))
