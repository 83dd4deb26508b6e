"""The commands as a person types them, in a process of their own where it matters."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import dcfl.cli

FAST = ["federation.rounds=2", "federation.participation=0.1", "training.epochs=1"]


def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str):  # type: ignore[no-untyped-def]
    """Exit code, standard output and standard error of `dcfl WORDS`."""
    monkeypatch.setattr(sys, "argv", ["dcfl", *words])
    with pytest.raises(SystemExit) as stop:
        dcfl.cli.main()
    shown = capsys.readouterr()
    return stop.value.code, shown.out, shown.err


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    return lambda *words: call(monkeypatch, capsys, *words)


def test_run_trains_and_says_where_the_report_is(cli, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    code, out, err = cli("run", *FAST, "--out", "here")
    assert code == 0
    assert "dcfl-pw on digits: accuracy" in out
    assert "report  here/report.html" in out
    assert (tmp_path / "here" / "report.html").is_file()
    assert "round 2/2" in err
    assert "clients/s" in err
    assert "left" in err


def test_run_takes_a_file_and_words_and_answers_in_json(cli, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "c.toml").write_text('[method]\nname = "fedavg"\n')
    code, out, _ = cli("run", "c.toml", *FAST, "--json")
    summary = json.loads(out)
    assert code == 0
    assert summary["method"] == "fedavg"
    assert summary["rounds"] == 2
    assert Path(summary["folder"]).parent == Path("runs")


def test_compare_shows_all_methods_side_by_side(cli, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    code, out, err = cli("compare", *FAST, "--out", "cmp", "--seeds", "0,1")
    assert code == 0
    for word in ("MAX", "EMA", "vs fedavg", "MB", "seconds", "cmp/report.html", "±"):
        assert word in out
    folders = {path.name for path in (tmp_path / "cmp").iterdir() if path.is_dir()}
    names = ("fedavg", "dcfl-sw", "dcfl-pw")
    assert folders == {f"{name}-seed{seed}" for name in names for seed in (0, 1)}
    assert all(name in out and f"{name}-seed1" in err for name in names)


def test_compare_in_json(cli) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = cli("compare", *FAST, "--methods", "fedavg,dcfl-pw", "--json")
    rows = json.loads(out)["methods"]
    assert code == 0
    assert [row["method"] for row in rows] == ["fedavg", "dcfl-pw"]
    assert rows[0]["gain"] is None


def test_methods_lists_equations_fields_and_costs(cli) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = cli("methods")
    assert code == 0
    assert all(name in out for name in dcfl.METHODS)
    assert 'reduction = "sum"  ("sum" or "mean")' in out
    _, one, _ = cli("methods", "dcfl-pw")
    assert "prototype_momentum" in one
    assert "fedavg" not in one
    _, as_json, _ = cli("methods", "--json")
    assert [method["name"] for method in json.loads(as_json)] == list(dcfl.METHODS)


def test_partition_counts_and_draws(cli, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = cli("partition", "data.clients=5", "--picture", "p.svg")
    assert code == 0
    assert "largest" in out
    assert "SHA-256" in out
    assert "<svg" in (tmp_path / "p.svg").read_text()
    _, as_json, _ = cli("partition", "data.clients=5", "--json")
    counts = json.loads(as_json)["counts"]
    assert [sum(row) for row in counts] == [1442 // 5] * 5


def test_report_of_runs_by_name(cli, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    cli("run", *FAST, "--out", "a")
    cli("run", *FAST, "method.name=fedavg", "--out", "b")
    code, out, _ = cli("report", "a", "b", "--out", "both.html")
    assert code == 0
    assert "both.html" in out
    page = (tmp_path / "both.html").read_text()
    assert "fedavg" in page
    assert "dcfl-pw" in page


def test_doctor_finds_this_machine_fit(cli) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = cli("doctor")
    assert code == 0, out
    assert "two equal runs gave equal weights" in out
    _, as_json, _ = cli("doctor", "--json")
    assert all(finding["fine"] for finding in json.loads(as_json))


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["run", "data.alfa=1"], 2, "did you mean alpha"),
        (["run", "training.lr=fast"], 2, "training.lr must be a number"),
        (["run", "missing.toml"], 2, "missing.toml: no such config file"),
        (["run", "data.alpha=0"], 2, "data.alpha must be above 0"),
        (["run", "data.clients=2000"], 2, "more than the 1442 training samples"),
        (["run", "federation.participation=0.01"], 2, "samples nobody"),
        (["run", "federation.participation=0"], 2, "must lie in (0, 1]"),
        (["run", "data.dataset=mnist"], 2, "unknown data set 'mnist'"),
        (["run", "a.toml", "b.toml"], 2, "one config file at a time"),
        (["run", "engine.device=cuda:7"], 2, "GPUs here"),
        (["run", "--nonsense"], 2, "No such option"),
        (["compare", "--methods", "fedavg,nope"], 2, "no method 'nope'"),
        (["compare", "--seeds", "a"], 2, "whole numbers"),
        (["methods", "nope"], 2, "no method 'nope'"),
        (["partition", "--picture", "p.txt"], 2, "must end in .svg"),
        (["partition", "--picture", "no/p.svg"], 2, "there is no folder no"),
        (["report", "nowhere"], 2, "nowhere"),
        (["report"], 2, "Missing argument"),
        (["rnu"], 2, "No such command"),
        (["run", "--out", "/proc/nope/x", *FAST], 3, "cannot be written"),
        (
            ["run", *FAST, "federation.rounds=5", "training.lr=1e20", "training.max_grad_norm=0"],
            4,
            "no client has given a usable reply for 3 rounds",
        ),
    ],
)
def test_mistakes_are_one_line_and_an_exit_code(cli, words, code, message) -> None:  # type: ignore[no-untyped-def]
    got, out, err = cli(*words)
    errors = [line for line in err.splitlines() if line.startswith("dcfl: ")]
    assert (got, len(errors)) == (code, 1), err
    assert message in errors[0]
    assert "Traceback" not in err
    assert out == ""


def test_debug_shows_the_traceback(cli) -> None:  # type: ignore[no-untyped-def]
    code, _, err = cli("run", "data.alpha=0", "--debug")
    assert code == 2
    assert "Traceback" in err


def test_help_and_version_in_a_real_process_without_torch() -> None:
    command = [sys.executable, "-X", "importtime", "-c", "import dcfl.cli; dcfl.cli.main()"]
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True)
    assert "compare" in done.stdout
    assert " torch" not in done.stderr
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout.startswith("dcfl 0.")


def test_ctrl_c_is_not_a_crash(cli, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(dcfl.cli, "_train", interrupted)
    code, _, err = cli("run", *FAST)
    assert code == 130
    assert err == "dcfl: interrupted\n"
