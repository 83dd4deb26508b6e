"""MLflow: a run in the experiment `dcfl`, in the store that MLflow itself uses.

MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME choose another store and experiment.
"""

from __future__ import annotations

import os
import time

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # before MLflow reads it

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

from dcfl.runs.rows import RoundRow, Summary
from dcfl.trackers.tracker import PROJECT, FollowedRun, numbers

LONGEST_VALUE = 500  # characters; some stores refuse longer ones
MOST_AT_ONCE = 100  # parameters in a message


class ToMLflow:
    def start(self, run: FollowedRun) -> None:
        self._client = MlflowClient()
        experiment = self._experiment()
        # A run is found again by its own id: MLflow gives it another.
        found = self._client.search_runs([experiment], f"tags.`dcfl.run` = '{run.id}'")
        if found:
            self._run = found[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
        else:
            tags = {"dcfl.run": run.id}
            self._run = self._client.create_run(experiment, None, tags, run.name).info.run_id
            self._log_settings(run)
        history = self._client.get_metric_history(self._run, "sampled") if found else []
        self._logged = max((metric.step for metric in history), default=0)

    def _experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT
        found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id if found else self._client.create_experiment(name))

    def _log_settings(self, run: FollowedRun) -> None:
        values = [Param(key, str(value)[:LONGEST_VALUE]) for key, value in run.settings.items()]
        for first in range(0, len(values), MOST_AT_ONCE):
            self._client.log_batch(self._run, params=values[first : first + MOST_AT_ONCE])

    def round(self, row: RoundRow) -> None:
        if row.round <= self._logged:  # repeated, with the same numbers
            return
        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, row.round) for name, value in numbers(row).items()]
        self._client.log_batch(self._run, metrics=metrics)

    def finish(self, summary: Summary | None) -> None:
        if summary is not None:
            self._client.set_tag(self._run, "dcfl.weights_sha256", summary.weights_sha256)
        self._client.set_terminated(self._run, "FINISHED" if summary else "KILLED")
