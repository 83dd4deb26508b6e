"""The commands as a person types them, in a process of their own where it matters."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import dcfl.cli.doctor
import dcfl.cli.main
import dcfl.cli.training_verbs
from dcfl.config import experiment_from
from dcfl.runs.folder import RecordedRun
from dcfl.system.wording import install_command
from dcfl.testing.properties import PROPERTIES
from tests.data.pictures import class_folders

# FedProx whose anchor is the live model: the term is zero, as in code that was published.
ZERO = """
from dataclasses import dataclass
import dcfl

@dataclass(frozen=True)
class Zero(dcfl.Method):
    mu: float = 1.0

    def objective(self, client):
        inner = super().objective(client)
        anchor = dict(client.model.named_parameters())
        def loss(batch):
            gaps = [(w - anchor[name]).square().sum() for name, w in client.trainable()]
            return inner(batch) + self.mu * sum(gaps)
        return loss
"""

FAST = ["federation.rounds=2", "federation.participation=0.1", "training.epochs=1"]
ALONE = ["--parallel", "1"]  # a process more would import torch again


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
    files = ("--csv", "cmp/table.csv", "--latex", "tables.tex")
    code, out, err = cli("compare", *FAST, *ALONE, "--out", "cmp", "--seeds", "0,1", *files)
    assert code == 0
    for word in ("MAX", "EMA", "vs fedavg", "MB", "w/t/l", "cmp/report.html", "±"):
        assert word in out
    assert "client-seconds" in out
    assert "models" in out
    assert "p is corrected for two comparisons with fedavg (Holm)" in out
    assert "csv     cmp/table.csv" in out
    assert (tmp_path / "cmp" / "table.csv").read_text().startswith("method,task,seeds,")
    assert (tmp_path / "tables.tex").read_text().startswith("% Bold")
    folders = {path.name for path in (tmp_path / "cmp").iterdir() if path.is_dir()}
    names = ("fedavg", "dcfl-sw", "dcfl-pw")
    assert folders == {f"{name}-seed{seed}" for name in names for seed in (0, 1)}
    assert all(name in out and f"{name}-seed1" in err for name in names)


def test_compare_in_json(cli) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = cli("compare", *FAST, *ALONE, "--methods", "fedavg,dcfl-pw", "--json")
    told = json.loads(out)
    rows = told["methods"]
    assert code == 0
    assert [row["method"] for row in rows] == ["fedavg", "dcfl-pw"]
    assert [pair["count"] for pair in told["pairs"]] == [1]
    assert "one seed" in told["verdict"][0].lower()
    assert rows[0]["gain"] is None
    assert rows[0]["own_accuracy"]["mean"] >= rows[0]["worst_decile_accuracy"]["mean"]


def test_compare_by_what_clients_have(cli) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = cli(
        "compare", *FAST, *ALONE, "--methods", "fedavg", "--by", "clients", "--out", "cmp"
    )
    summary = RecordedRun.open(Path("cmp/fedavg-seed0")).summary
    assert code == 0
    assert "own mix of classes" in out
    assert f"{summary['client_accuracy']:.2f}" in out


def test_methods_lists_equations_fields_and_costs(cli) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = cli("methods")
    assert code == 0
    assert all(name in out for name in dcfl.METHODS)
    assert 'reduction = "mean"  ("sum" or "mean")' in out
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


def test_doctor_finds_this_machine_fit(cli, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = cli("doctor")
    assert code == 0, out
    assert "two equal runs gave equal weights" in out
    monkeypatch.setattr(dcfl.cli.doctor, "CHECKS", {"fine": str, "broken": lambda: str(1 / 0)})
    code, out, _ = cli("doctor", "--json")
    assert (code, [finding["fine"] for finding in json.loads(out)]) == (2, [True, False])


def test_a_method_of_ones_own_from_new_to_run(cli, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = cli("new", "method", "my-idea")
    assert code == 0
    assert "dcfl check my_idea.py" in out
    code, out, _ = cli("check", "my_idea.py")
    assert code == 0
    assert out.count("✓") == len(PROPERTIES)
    try:
        code, out, _ = cli("run", "--method-file", "my_idea.py", *FAST, "method.mu=0.5", "--json")
        assert code == 0
        assert json.loads(out)["method"] == "my-idea"
    finally:
        dcfl.METHODS.pop("my-idea", None)


def test_new_writes_nothing_through_a_link_to_nowhere(cli, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    outside = tmp_path / "outside"
    (tmp_path / "idea.py").symlink_to(outside)
    assert cli("new", "method", "idea")[0] == 0
    assert not outside.exists()
    assert (tmp_path / "idea.py").is_file()


@pytest.mark.slow
def test_check_fails_for_a_broken_method(cli, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "zero.py").write_text(ZERO)
    code, out, _ = cli("check", "zero.py")
    assert code == 1
    assert "✗ differs from FedAvg otherwise: with its default fields every bit is FedAvg's" in out
    _, as_json, _ = cli("check", "zero.py", "--json")
    assert not all(verdict["holds"] for verdict in json.loads(as_json)["zero"])


def test_a_taken_name_is_refused(cli, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "moon.py").write_text(ZERO.replace("Zero", "MOON"))
    code, _, err = cli("run", "--method-file", "moon.py")
    assert code == 2
    assert "the name moon is taken" in err


def test_a_run_without_usable_replies_has_an_exit_code_of_its_own(cli) -> None:  # type: ignore[no-untyped-def]
    wild = ["federation.rounds=5", "training.lr=1e20", "training.max_grad_norm=0"]
    code, out, err = cli("run", *FAST, *wild)
    errors = [line for line in err.splitlines() if line.startswith("dcfl: no client")]
    assert (code, out, len(errors)) == (4, "", 1), err
    assert "no client has given a usable reply for 3 rounds" in errors[0]


@pytest.fixture
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two sites with three classes of small pictures each."""
    monkeypatch.setenv("DCFL_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    for site in ("north", "south"):
        for label, name in enumerate(("cat", "dog", "owl")):
            folder = tmp_path / "pictures" / site / name
            folder.mkdir(parents=True)
            for number in range(10):
                pixels = rng.integers(0, 60, (20, 24, 3), dtype=np.uint8)
                pixels[..., label] += 150
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return tmp_path / "pictures"


def test_ones_own_pictures_from_check_to_run(cli, pictures: Path) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = cli("data", "check", f"data.dataset=folder:{pictures / 'north'}")
    assert code == 0
    assert "3: cat, dog, owl" in out
    assert "24 to train on, 6 to test on (20 %)" in out
    _, as_json, _ = cli("data", "check", f"data.dataset=sites:{pictures}", "--json")
    assert json.loads(as_json)["sites"] == {"north": 24, "south": 24}
    code, out, _ = cli(
        "run", f"data.dataset=sites:{pictures}", *FAST[:1], "federation.participation=1"
    )
    assert code == 0
    run = next(Path("runs").iterdir())
    rows = [json.loads(line) for line in (run / "clients.jsonl").read_text().splitlines()]
    assert {row["client"] for row in rows} == {0, 1}
    assert all(0 <= row["own_accuracy"] <= 100 for row in rows)
    assert RecordedRun.open(run).class_names == ["cat", "dog", "owl"]
    assert run.name.endswith("-sites-pictures-dcfl-pw")
    _, out, _ = cli("partition", f"data.dataset=sites:{pictures}")
    assert "as it came" in out
    assert "owl" in out


@pytest.mark.parametrize("door", [["run"], ["compare", "--methods", "fedavg"], ["partition"]])
def test_a_small_share_of_many_sites(  # type: ignore[no-untyped-def]
    cli, tmp_path: Path, door: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """2 % of 30 sites is one; of the 20 clients that are usual it would be nobody."""
    monkeypatch.setenv("DCFL_CACHE", str(tmp_path / "cache"))
    for site in range(30):
        class_folders(tmp_path / "sites" / f"site{site:02}", cat=3, dog=3)
    few = ["federation.rounds=1", "federation.participation=0.02", "data.min_size=2"]
    words = [f"data.dataset=sites:{tmp_path / 'sites'}", "data.image_size=8", *few]
    code, _, err = cli(*door, *words)
    assert code == 0, err


def test_a_small_share_is_not_refused_before_the_sites_are_known() -> None:
    """As `dcfl flower run` and `dcfl reproduce` read their settings."""
    experiment_from(None, {"federation": {"participation": 0.02}})


@pytest.mark.filterwarnings("default")
def test_broken_pictures_are_named(cli, pictures: Path) -> None:  # type: ignore[no-untyped-def]
    (pictures / "north" / "cat" / "half.png").write_bytes(b"\x89PNG")
    where = f"data.dataset=folder:{pictures / 'north'}"
    code, out, err = cli("data", "check", where)
    assert (code, err.count("\n")) == (2, 1)
    assert "1 of 31 pictures are broken" in err
    assert "half.png" in out
    code, _, err = cli("data", "check", where, "data.broken=skip")
    assert code == 0
    assert "half.png" in err


@pytest.mark.filterwarnings("ignore:.*skipped 1 broken image")
def test_the_report_counts_broken_pictures(cli, pictures, tmp_path) -> None:  # type: ignore[no-untyped-def]
    """Also in a run that finds the pictures decoded."""
    words = [f"data.dataset=folder:{pictures / 'north'}", "data.image_size=8", *FAST[:1]]
    told = "<dt>Broken images, left out</dt><dd>1</dd>"
    cli("run", *words, "--out", str(tmp_path / "whole"))
    assert told not in (tmp_path / "whole" / "report.html").read_text()
    (pictures / "north" / "cat" / "half.png").write_bytes(b"\x89PNG")
    for name in ("first", "again"):
        out = tmp_path / name
        code, _, err = cli("run", *words, "data.broken=skip", "--out", str(out))
        assert code == 0, err
        assert told in (out / "report.html").read_text()


@pytest.mark.slow
def test_a_setting_that_trains_to_chance_is_warned_of_once(tmp_path: Path) -> None:
    """Not again by the workers, nor for each of several such runs."""
    chosen = ["method.reduction=sum", "method.mu=10", "engine.workers=2"]
    both = ["compare", "--methods", "fedavg,dcfl-sw", "--seeds", "0,1"]
    for command in (["run", "method.name=dcfl-sw"], both):
        done = subprocess.run(
            [sys.executable, "-m", "dcfl", *command, *chosen, *FAST],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr.count("dcfl: warning: ") == done.stderr.count("trains to chance") == 1


def test_settings_show_every_key(cli, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = cli("settings", "server.optimizer=fedyogi", "method.name=moon")
    assert code == 0
    (tmp_path / "all.toml").write_text(out)
    assert experiment_from(tmp_path / "all.toml").server.optimizer.name == "fedyogi"


def test_compare_goes_on_without_a_method_that_diverges(cli, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    code, out, err = cli(
        "compare", *FAST, *ALONE, "--methods", "fedavg,dcfl-sw", "method.mu=1e37",
        "training.max_grad_norm=0", "federation.rounds=4", "output.dir=both",
    )  # fmt: skip
    assert code == 4
    assert "dcfl: dcfl-sw-seed0: no client" in err
    assert "fedavg" in out
    assert (tmp_path / "both" / "report.html").is_file()
    assert cli("compare", *FAST, "--out", "both")[0] == 2


def test_warnings_are_one_line(cli) -> None:  # type: ignore[no-untyped-def]
    _, _, err = cli("run", *FAST, "method.align=5")
    assert "dcfl: warning: align + uniform = 5.1; the paper asks for 1\n" in err
    assert ".py" not in err


def test_debug_shows_the_traceback(cli) -> None:  # type: ignore[no-untyped-def]
    code, _, err = cli("run", "data.alpha=0", "--debug")
    assert code == 2
    assert "Traceback" in err


def test_help_and_version_in_a_real_process_without_torch() -> None:
    command = [
        sys.executable,
        "-X",
        "importtime",
        "-c",
        "import dcfl.cli.main; dcfl.cli.main.main()",
    ]
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True)
    assert "compare" in done.stdout
    assert " torch" not in done.stderr
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout.startswith("dcfl 0.")


def test_being_terminated_has_its_exit_code(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-c",
        "import dcfl.cli.main; dcfl.cli.main.main()",
        "run",
        "--out",
        "here",
    ]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert "cnn with" in process.stderr.readline()
    assert "round 1/" in process.stderr.readline()
    process.terminate()
    assert process.wait(timeout=60) == 143
    assert "`dcfl resume here` continues" in process.stderr.read()


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("cryptography", ["flower", "kit", "a", "--superlink", "localhost:1"]),
        ("cryptography", ["flower", "up"]),
        ("flwr", ["flower", "run"]),
        ("ray", ["run", "engine.name=flower-simulation", *FAST]),
    ],
)
def test_without_the_extra_it_says_what_to_install(  # type: ignore[no-untyped-def]
    missing: str, words: list[str], cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = [name for name in sys.modules if name.startswith("dcfl.flower.")]
    for name in sorted(loaded, reverse=True):  # what is inside a package before the package
        package, _, own = name.rpartition(".")
        monkeypatch.delattr(sys.modules[package], own, raising=False)  # put back afterwards
        monkeypatch.delitem(sys.modules, name)
    # Other tests may have imported parts of it, which are found without asking for the whole.
    parts = [name for name in sys.modules if name.startswith(f"{missing}.")]
    for name in (missing, *parts):
        monkeypatch.setitem(sys.modules, name, None)
    code, _, err = cli(*words)
    assert code == 2
    assert install_command("flower") in err
    assert len(err.splitlines()) == 1


def test_ctrl_c_is_not_a_crash(cli, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(dcfl.cli.training_verbs, "train", interrupted)
    code, _, err = cli("run", *FAST)
    assert code == 130
    assert err.splitlines()[1:] == ["dcfl: interrupted"]  # after what trains where


def test_resuming_a_run_that_has_ended_is_json_too(cli) -> None:  # type: ignore[no-untyped-def]
    _, ran, _ = cli("run", *FAST, "--out", "run", "--json")
    code, out, _ = cli("resume", "run", "--json")
    assert (code, json.loads(out)) == (0, json.loads(ran))
