"""Standard streams that are closed, full, broken or know no more than ASCII: no run is lost to what
nobody can read, and JSON stays clean."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import dcfl.cli.main
import dcfl.system.streams
from dcfl.system.processes import stopped_by_signals
from dcfl.system.streams import forgiving_streams
from tests.reliability.victims import SMALL, exit_code, forked

QUICK = (*SMALL, "federation.rounds=2")
TO_JSON = ("--json", "--out", "made")
RUN = ("run", *QUICK, *TO_JSON)
POOL = ("run", *QUICK, "engine.workers=2", *TO_JSON)
PLAIN = [word for word in QUICK if not word.startswith("method.name")]
COMPARE = ("compare", *PLAIN, "--methods", "fedavg,moon", *TO_JSON, "--parallel", "1")


def closed(descriptor: int) -> None:
    os.close(descriptor)


def full(descriptor: int) -> None:
    os.dup2(os.open("/dev/full", os.O_WRONLY), descriptor)


def broken(descriptor: int) -> None:
    """A pipe that nobody reads any more."""
    read, write = os.pipe()
    os.close(read)
    os.dup2(write, descriptor)


def full_pipe() -> tuple[int, int]:
    """That does not wait for its reader, as a program that started us may have set it up."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    with suppress(BlockingIOError):
        while True:
            os.write(write, b"x")
    return read, write


def impatient(descriptor: int) -> None:
    os.dup2(full_pipe()[1], descriptor)


Spoil = Callable[[int], None]
SPOILED: dict[str, Spoil] = {
    "closed": closed,
    "full": full,
    "broken": broken,
    "impatient": impatient,
}


def ended(
    folder: Path, *words: str, spoiled: dict[int, Spoil], encoding: str = "utf-8"
) -> tuple[int, str, str]:
    """`dcfl WORDS` with some of its streams spoiled: its exit code, output and errors."""
    files = {number: folder / f"stream-{number}" for number in (1, 2)}

    def main() -> None:
        os.chdir(folder)
        for number, path in files.items():
            with path.open("wb") as stream:
                os.dup2(stream.fileno(), number)
        for number, spoil in spoiled.items():
            spoil(number)
        # As Python does it when it starts.
        streams = [
            None
            if spoiled.get(number) is closed
            else os.fdopen(number, "w", 1 if number == 2 else -1, encoding, closefd=False)
            for number in (1, 2)
        ]
        sys.stdout, sys.stderr = streams  # type: ignore[assignment]
        sys.argv = ["dcfl", *words]
        dcfl.cli.main.main()

    code = exit_code(forked(main), 120)
    out, err = (files[number].read_text(encoding) for number in (1, 2))
    return code, out, err


@pytest.mark.parametrize(
    ("words", "how"),
    [
        *((RUN, how) for how in SPOILED),
        *((words, "broken") for words in (POOL, COMPARE, ("methods", "--json"))),
    ],
    ids=lambda one: one if isinstance(one, str) else one[0],
)
def test_standard_error_costs_nothing(words: tuple[str, ...], how: str, tmp_path: Path) -> None:
    code, out, _ = ended(tmp_path, *words, spoiled={2: SPOILED[how]})
    assert code == 0
    assert json.loads(out)
    if words[0] == "run":
        rows = (tmp_path / "made" / "rounds.jsonl").read_text().splitlines()
        assert [json.loads(row)["round"] for row in rows] == [1, 2]


@pytest.mark.parametrize(
    ("words", "how"),
    [(RUN, "closed"), (RUN, "broken"), (COMPARE, "closed"), (("methods",), "broken")],
    ids=lambda one: one if isinstance(one, str) else one[0],
)
def test_nobody_has_to_read_the_result(words: tuple[str, ...], how: str, tmp_path: Path) -> None:
    code, _, err = ended(tmp_path, *words, spoiled={1: SPOILED[how]})
    assert code == 0, err
    assert "Traceback" not in err
    if words[0] == "run":
        assert (tmp_path / "made" / "summary.json").is_file()
        assert (tmp_path / "made" / "report.html").is_file()


def test_a_report_that_nobody_hears_of_is_written(tmp_path: Path) -> None:
    assert ended(tmp_path, *RUN, spoiled={})[0] == 0
    for spoiled in ({1: broken, 2: broken}, {1: closed, 2: closed}):
        page = tmp_path / "made" / "report.html"
        page.unlink()
        assert ended(tmp_path, "report", "made", spoiled=spoiled)[0] == 0
        assert page.is_file()


def test_a_result_that_the_disk_refuses_is_said(tmp_path: Path) -> None:
    code, _, err = ended(tmp_path, "partition", spoiled={1: full})
    assert code == 3
    assert err == "dcfl: standard output: No space left on device\n"


def test_a_mistake_keeps_its_exit_code_when_nobody_hears_of_it(tmp_path: Path) -> None:
    for how in SPOILED.values():
        assert ended(tmp_path, "run", "data.alpha=0", spoiled={1: how, 2: how})[0] == 2


def test_a_result_waits_for_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a full pipe that does not wait: whoever asks when there is room, makes some."""
    read, write = full_pipe()
    monkeypatch.setattr(select, "select", lambda *_: os.read(read, 2**20))
    with monkeypatch.context() as patched, os.fdopen(write, "w") as stream:
        patched.setattr(sys, "stdout", stream)
        patched.setattr(dcfl.system.streams, "STDOUT", write)
        with forgiving_streams():
            print("the result")
    with os.fdopen(read, "rb") as reader:
        assert reader.read() == b"the result\n"


def test_a_signal_is_answered_in_the_middle_of_a_message(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As when the terminal is held up by Ctrl-S and somebody sends SIGTERM."""
    signals, stops = [signal.SIGTERM], []
    written = dcfl.system.streams._Forgiving._written

    def interrupted(stream: dcfl.system.streams._Forgiving, data: memoryview) -> int:
        if signals:
            os.kill(os.getpid(), signals.pop())
        return written(stream, data)

    monkeypatch.setattr(dcfl.system.streams._Forgiving, "_written", interrupted)
    with monkeypatch.context() as patched, (tmp_path / "said").open("w") as stream:
        patched.setattr(sys, "stderr", stream)
        patched.setattr(dcfl.system.streams, "STDERR", stream.fileno())
        with forgiving_streams(), stopped_by_signals(lambda: stops.append(True)):
            print("round 1", file=sys.stderr)
    assert stops == [True]
    said = (tmp_path / "said").read_text().splitlines()
    assert said == ["dcfl: stopping after this round; once more to stop at once", "round 1"]


@pytest.mark.parametrize(
    "words", [("run", *QUICK, "--out", "made"), ("partition",), ("methods",), ("check", "fedavg")]
)
def test_a_terminal_without_unicode(words: tuple[str, ...], tmp_path: Path) -> None:
    code, out, err = ended(tmp_path, *words, spoiled={}, encoding="ascii")
    assert code == 0, err
    assert out
    assert "Traceback" not in err


@pytest.mark.slow
def test_in_a_shell(tmp_path: Path) -> None:
    """Everything from the start of Python on: `2>&1 | head -1`, `2>&-`, PYTHONIOENCODING."""
    dcfl = f"{sys.executable} -m dcfl"
    run = f"{dcfl} run {' '.join(QUICK)}"
    script = f"""
        {run} --out a 2>&1 | head -1 > first; echo ${{PIPESTATUS[0]}}
        {run} --out b --json 2>&- > b.json; echo $?
        PYTHONIOENCODING=ascii LC_ALL=C {run} --out c > c.txt 2>&1; echo $?
        """
    environment = {**os.environ, "PYTHONPATH": str(Path(dcfl_file()).parents[1])}
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.stdout.split() == ["0", "0", "0"], done.stderr
    assert (tmp_path / "a" / "summary.json").is_file()
    assert json.loads((tmp_path / "b.json").read_text())["rounds"] == 2


def dcfl_file() -> str:
    return str(dcfl.__file__)
