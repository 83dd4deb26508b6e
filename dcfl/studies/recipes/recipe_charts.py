"""The charts that only a reproduction has; recipe_figures.py has the pictures that they take the
place of."""

from __future__ import annotations

from dcfl.report import charts
from dcfl.report.charts import Chart, series
from dcfl.studies.recipes.recipe import REFERENCE
from dcfl.studies.recipes.recipe_figures import gains_over_reference
from dcfl.studies.recipes.results import Results


def gain_chart(results: Results, block: str) -> Chart:
    """What each method gains over FedAvg, from column to column."""
    columns = results.columns(block)
    rows = [row for row in results.rows(block) if row != REFERENCE]
    gains = gains_over_reference(results, block)
    lines = [series(row, range(len(columns)), gains[at], colour=at) for at, row in enumerate(rows)]
    names = {"names": columns, "low": -0.3, "high": len(columns) - 0.7}
    return charts.plot(
        {"label": results.recipe.columns, **names},
        {"label": "EMA against FedAvg (points)"},
        [{"series": lines}],
    )


def weights_chart(results: Results, block: str) -> Chart | None:
    """Gains over FedAvg by row and column, as colours and numbers."""
    rows = [row for row in results.rows(block) if row != REFERENCE]
    columns = (results.recipe.columns, results.columns(block))
    gains = gains_over_reference(results, block)
    return charts.matrix(gains, ("method", rows), columns, "EMA, points", "signed", digits=1)
