"""A comparison of methods as text for other programs: CSV and LaTeX."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from dcfl.report.comparison_section import comparison_sections, results_section
from dcfl.report.document import Table, latex_tables
from dcfl.runs.standing import Standing


def csv_text(standing: Standing) -> str:
    """A row per method with all its numbers: what --json has of each, without the curve."""
    rows = []
    for group, values in zip(standing.groups, standing.to_json()["methods"], strict=True):
        named = {"method": group.method, "task": group.task, "seeds": group.seeds}
        rows.append({**named, **dict(_flat({**values, "method": {}}))})
    columns = max((list(row) for row in rows), key=len)  # the reference has no gain
    return Table(columns, [[_plain(row.get(column)) for column in columns] for row in rows]).csv()


def _flat(values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """`ema_accuracy` and `ema_accuracy_deviation`, `gain` and `gain_interval_low`, and so on."""
    for name, value in values.items():
        if not isinstance(value, dict):
            continue
        for key, inner in value.items():
            if key == "mean":
                yield name, inner
            elif key.endswith("interval"):
                low, high = inner or (None, None)
                yield from ((f"{name}_{key}_low", low), (f"{name}_{key}_high", high))
            elif key not in ("count", "method"):
                yield f"{name}_{key}", inner


def _plain(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def latex_text(standing: Standing) -> str:
    """The tables of the page, with the rules of booktabs."""
    return latex_tables([results_section(standing), *comparison_sections(standing)])
