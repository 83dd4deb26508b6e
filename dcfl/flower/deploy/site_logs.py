"""What the sites of this machine have logged about their failures: more than crosses the wire."""

from __future__ import annotations

from pathlib import Path

from dcfl.flower.deploy.deployment_record import read_record
from dcfl.flower.roster import site_title
from dcfl.flower.site_failures import failures_in


class SiteLogs:
    """The logs of the sites that `dcfl flower up` started, from now on."""

    def __init__(self, home: Path) -> None:
        home = home.resolve()
        self._logs = {
            node.name: home / "logs" / f"{node.name}.log" for node in read_record(home).nodes
        }
        self._read = {name: len(_after(path, 0)) for name, path in self._logs.items()}
        self._told: set[tuple[str, str]] = set()

    def news(self) -> list[str]:
        """A line for each failure that is new, with the site, the cause and the log."""
        lines = []
        for name, path in self._logs.items():
            new = _after(path, self._read[name])
            whole = new[: new.rfind(b"\n") + 1]  # the last line may still grow
            self._read[name] += len(whole)
            for failure in failures_in(whole.decode("utf-8", "replace")):
                if (name, failure.reason) not in self._told:
                    self._told.add((name, failure.reason))
                    lines.append(f"{site_title(name)}: {failure.advice}; log {path}")
        return lines


def _after(path: Path, position: int) -> bytes:
    if not path.is_file():
        return b""
    with path.open("rb") as log:
        log.seek(position)
        return log.read()
