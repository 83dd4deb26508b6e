"""Other people's text (names, paths, settings, reasons) is text, wherever it is shown."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image
from rich.console import Console

import dcfl.cli.main
from dcfl.cli import tables, terminal
from dcfl.comparisons.comparison import plan_comparison
from dcfl.comparisons.groups import group_runs
from dcfl.comparisons.standing import Standing
from dcfl.comparisons.verdict import verdict
from dcfl.config import apply, as_tables, experiment_from, from_toml, to_toml
from dcfl.errors import ClientFailure, ConfigError, ProtocolError
from dcfl.experiment import Experiment
from dcfl.messages import Broadcast, ClientUpdate
from dcfl.methods import METHODS, Method
from dcfl.report import write_report
from dcfl.report.comparison_section import csv_text
from dcfl.report.document import Table
from dcfl.runs import progress
from dcfl.runs.folder import RecordedRun, new_folder
from dcfl.runs.progress import Progress
from dcfl.runs.rows import RoundRow
from dcfl.server.validation import Schema, check_update
from dcfl.system.wording import without_apostrophe
from dcfl.testing.toys import TRAINING
from tests.cli.test_main import FAST
from tests.report import folders
from tests.report.folders import write_run

NASTY = [
    "\x1b[31mred\x1b[0m",
    "\x1b]8;;https://example.org\x1b\\click\x1b]8;;\x1b\\",
    "\x9b2J\x07\x08\r",
    "\u202egnp.exe\u2066",
    "[/red]",
    "[link=https://example.org]x[/link]",
    ":smile:",
    r"$\frac$ % _ & # ^ ~ {}",
    "a\nb|c\\|d\\",
    '"quoted",\'',
    "<script>alert(1)</script>",
    "..",
    "{task.description} {0}",
    "鳥 é",
    "n" * 200,
]
BROKEN = ["\udcff\udc9b", "\ud800"]  # bytes that are not UTF-8, and what no file system has
LONG = "x" * 10_000

hostile = st.one_of(
    st.sampled_from([*NASTY, *BROKEN, LONG]),
    st.text(st.characters(exclude_categories=()), max_size=20),
    st.lists(st.sampled_from(NASTY), min_size=2, max_size=3).map("".join),
)
quick = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def on_disk(text: str) -> str:
    """As much of it as a file may be called."""
    text = re.sub("[/\0\ud800-\udc7f\udd00-\udfff]", "", text)
    name = text.encode("utf-8", "surrogateescape")[:200]
    return os.fsdecode(name).lstrip(".") or "x"


def assert_plain(text: str) -> None:
    odd = {char for line in text.split("\n") for char in line if not char.isprintable()}
    assert not odd, (odd, text[:500])


def main(*words: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `dcfl WORDS`, which must be plain."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with (
        patch.object(sys, "argv", ["dcfl", *words]),
        redirect_stdout(out),
        redirect_stderr(err),
        warnings.catch_warnings(action="default"),  # shown, as they would be
        pytest.raises(SystemExit) as stop,
    ):
        dcfl.cli.main.main()
    shown = [stream.buffer.getvalue().decode("utf-8") for stream in (out, err)]  # type: ignore[attr-defined]
    for text in shown:
        assert_plain(text)
    assert isinstance(stop.value.code, int)
    return stop.value.code, *shown


def charts_of(page: str) -> list[str]:
    """The data of each chart, as a browser reads it."""
    found = re.findall(r'<script type="application/json">(.*?)</script>', page)
    return [json.dumps(json.loads(text), ensure_ascii=False) for text in found]


def assert_page(path: Path, charts: int) -> str:
    page = path.read_bytes().decode("utf-8")
    assert_plain(page)
    assert "<script>alert" not in page
    assert len(charts_of(page)) == charts
    return page


def class_folders(root: Path, names: Sequence[str], images: int = 8) -> Path:
    for shade, name in enumerate(names):
        folder = root / on_disk(name)
        folder.mkdir(parents=True)
        for number in range(images):
            Image.new("RGB", (8, 8), (20 * shade % 256, 100, number)).save(folder / f"{number}.png")
    return root


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DCFL_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


ON_DISK = [name for name in [*NASTY, BROKEN[0]] if name != ".."]


def small(folder: str) -> list[str]:
    return [
        f"data.dataset=folder:{folder}",
        "data.image_size=8",
        "data.clients=4",
        "federation.participation=1",
    ]


# Class names


@pytest.mark.slow
def test_a_run_of_a_folder_with_hostile_names_in_a_process(here: Path) -> None:
    """The data set's own name and a class's are not even UTF-8."""
    data, out = os.fsdecode(b"data-\xff\x1b[31m"), "out-\x1b[31m\u202e\n"
    class_folders(here / data, ON_DISK)

    def dcfl_(*words: str) -> str:
        done = subprocess.run([sys.executable, "-m", "dcfl", *words], capture_output=True)
        assert done.returncode == 0, done.stderr
        for stream in (done.stdout, done.stderr):
            assert_plain(stream.decode("utf-8"))
        return done.stdout.decode()

    words = [*small(data), "federation.rounds=2"]
    assert r"data-\udcff\x1b[31m" in dcfl_("run", *words, "method.name=fedavg", "--out", out)
    recorded = RecordedRun.open(Path(out))
    assert recorded.config["data"]["dataset"] == f"folder:{data}"
    assert recorded.config["output"]["dir"] == out
    assert_page(Path(out, "report.html"), 4)
    found = json.loads(dcfl_("data", "check", *words, "--json"))
    assert found["dataset"] == f"folder:{data}"
    assert len(found["class_names"]) == len(ON_DISK)
    dcfl_("analyse", out, "--no-drift", "--out", "analysis")
    assert_page(here / "analysis" / "analysis.html", 2)


@pytest.mark.parametrize("ending", ["svg", "png", "pdf"])
def test_the_picture_of_a_partition(here: Path, ending: str) -> None:
    class_folders(here / "data", ON_DISK)
    code, out, _ = main("partition", *small("data"), "--picture", f"\x1b[1m.{ending}")
    assert code == 0
    assert (here / f"\x1b[1m.{ending}").stat().st_size > 1000
    assert r"picture  \x1b[1m." in out
    assert "[red]" in out  # no file name has a slash
    assert ":smile:" in out


def test_a_card_and_a_comparison(here: Path) -> None:
    class_folders(here / "data", ON_DISK)
    code, out, _ = main("data", "check", *small("data"))
    assert (code, r"\x1b[31mred\x1b[0m" in out) == (0, True)
    words = [*small("data"), "federation.rounds=1", "--methods", "fedavg,fedprox"]
    assert main("compare", *words, "--parallel", "1", "--out", "\x1b[1mout\n")[0] == 0
    page = assert_page(here / "\x1b[1mout\n" / "report.html", 5)
    shown = "".join(charts_of(page))
    assert all(name in shown for name in ("[red]", ":smile:", "<script>alert", "$\\\\frac$ % _"))


@quick
@given(st.lists(hostile, min_size=2, max_size=6))
def test_tables_and_bars_on_a_terminal(names: list[str]) -> None:
    counts = np.ones((2, len(names)), np.int64)
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=200, color_system="truecolor")
    console.print(tables.partition_table(counts, names, names[:2]))
    stderr = Console(file=shown, force_terminal=True, width=200)
    with progress.shown(names[0], Experiment(), Path(), console=stderr) as show:
        show(RoundRow.from_json(folders.row(1, [50.0]), Path("rounds.jsonl")))
    with (
        patch.object(terminal, "stderr", stderr),
        terminal.download_progress(names[1]) as arrived,
    ):
        arrived(1, 2)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", shown.getvalue())  # colours and the bar's own
    assert_plain(text)
    assert "\x1b]8" not in shown.getvalue()


def test_what_looks_like_markup_is_shown_as_it_is() -> None:
    with terminal.stdout.capture() as shown:
        names = ["[/red]", "[b]x[/b]", ":smile:"]
        terminal.stdout.print(tables.partition_table(np.ones((1, 3), np.int64), names))
    assert all(name in shown.get() for name in names)


# Recorded runs


@settings(quick, max_examples=4)
@given(hostile, hostile, hostile, st.lists(hostile, min_size=2, max_size=4))
@example("\udcff\x1b", "[/red]", LONG, NASTY)
def test_a_report_about_hostile_runs(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    method: str,
    reason: str,
    classes: list[str],
) -> None:
    root = tmp_path_factory.mktemp("runs")
    method = method.encode("utf-8", "replace").decode()
    lost = [{"round": 1, "client": 0, "outcome": "failed", "reason": reason, "metrics": {}}]
    write_run(root / on_disk(name), method=method, class_names=classes, clients=lost)
    write_run(root / f"{on_disk(name)}2", method="fedprox", class_names=classes)
    assert_page(write_report(root), 4)
    groups = group_runs([RecordedRun.open(path) for path in root.iterdir() if path.is_dir()])
    with terminal.stdout.capture() as shown:
        terminal.stdout.print(tables.comparison_table(Standing(groups)))
    assert_plain(shown.get())
    assert_plain("\n".join(verdict(Standing(groups))))
    assert_plain(csv_text(Standing(groups)))


@quick
@given(st.lists(st.tuples(hostile, hostile), min_size=1, max_size=3))
@example([("a|b\\", "c\\|d")])
def test_tables_as_text(cells: list[tuple[str, str]]) -> None:
    table = Table(["name", "value"], cells)
    for text in (table.markdown(), table.latex()):
        assert_plain(text)
        text.encode("utf-8")
    lines = table.markdown().split("\n")
    assert len(lines) == 2 + len(cells)
    for line in lines:  # a bar that no backslash takes back ends a cell
        assert len(re.findall(r"(?:\\.|[^|\\])*\|", line)) == 3
    assert table.latex().count("\n") == 6 + len(cells)
    for row in table.latex().split("\n")[4:-4]:
        bare = re.sub(
            r"\\textbackslash\{\}|\\text[a-z]+\{\}|\\[&%$#_{}]|\$[-<>]\$|\$\\pm\$", "", row
        )
        assert not set("%#_{}^~") & set(bare)
    read = list(csv.reader(io.StringIO(table.csv(), newline="")))
    assert list(map(len, read)) == [2] * (1 + len(cells))
    for (name, _), row in zip(cells, read[1:], strict=True):
        back = without_apostrophe(row[0])
        assert back == name or not name.isprintable() or len(name) > 2000


# Settings


@quick
@given(hostile, hostile)
@example("data.path", BROKEN[1])
@example("method.name", "../../x")
@example("data.dataset", f"folder:{LONG}")
@example("data.dataset", "folder:" + BROKEN[0])
@example("data.clients", "\x1b[31m")
def test_words_of_a_config(key: str, value: str) -> None:
    code, _, err = main("run", f"{key}={value}".replace("\0", ""), "federation.rounds=x")
    assert code == 2
    assert err.count("\n") == 1
    assert err.startswith("dcfl: ")
    assert len(err) < 2100


@quick
@given(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
    | st.sampled_from([*NASTY, BROKEN[0]])
)
def test_a_config_is_read_back_equal(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.mktemp("run")
    experiment = experiment_from(None, {"data": {"path": text, "class_names": [text, f"{text}b"]}})
    written = to_toml(as_tables(experiment))
    assert_plain(re.sub("[\udc80-\udcff]", "", written))
    assert tomllib.loads(written)["data"]["path"] == text
    (folder / "config.toml").write_text(written, "utf-8", "surrogateescape")
    again = RecordedRun.open(folder).experiment
    assert again.data == experiment.data


def test_fields_of_a_method_are_read_back_equal() -> None:
    @dataclass(frozen=True)
    class Named(Method):
        λ: float = 0.5
        text: str = "".join(NASTY)

    with patch.dict(METHODS, {"named": Named}):
        experiment = Experiment(method=Named(λ=0.25))
        assert from_toml(to_toml(as_tables(experiment))) == experiment


def test_settings_that_no_file_can_hold() -> None:
    with pytest.raises(ConfigError, match=r"data\.path.*not valid Unicode"):
        experiment_from(None, {"data": {"path": "\ud800"}})
    assert main("settings", f"data.path={BROKEN[0]}")[0] == 0


@quick
@given(hostile)
def test_paths(name: str) -> None:
    path = name.replace("\0", "")
    for words in (["report", path], ["resume", path], ["run", "x" + path.replace("=", "")]):
        # Folders named "." and ".." are there, and may hold runs.
        if path and os.path.normpath(path) not in (".", "..") and not path.startswith("-"):
            code, _, err = main(*words)
            assert code == 2 or "too long" in err or "Unicode" in err, err
            assert err.count("\n") == 1


# Methods


BAD_NAMES = ["", ".", "..", "../../x", "a/b", "-x", ".x", "a b", "a\n", "[/red]", "x" * 51, "\x1b"]
bad_names = st.sampled_from(BAD_NAMES) | hostile.filter(
    lambda name: not re.fullmatch(r"\w[\w.-]{0,49}", name)
)


def method_called(name: object) -> type[Method]:
    class Mine(Method):
        pass

    Mine.name = name  # type: ignore[assignment]
    return Mine


@quick
@given(bad_names | st.none() | st.just(7))
def test_a_method_has_a_plain_name(name: object) -> None:
    with pytest.raises(ConfigError, match="is no name for a method"):
        Experiment(method=method_called(name)())
    if isinstance(name, str):
        refused = pytest.raises(ConfigError, match="is no name for a method")
        with patch.dict(METHODS, {name: method_called(name)}), refused:
            plan_comparison(Experiment(), [name], [0])


@pytest.mark.parametrize("name", ["fedavg", "my_method-2.0", "_private", "Grüße", "7", "x" * 50])
def test_plain_names_are_taken(name: str) -> None:
    assert Experiment(method=method_called(name)()).method.name == name


@pytest.mark.parametrize("name", [*BAD_NAMES, *NASTY[:4], BROKEN[1], LONG, 7, ["x"], None])
def test_the_name_in_a_method_file(here: Path, name: object) -> None:
    text = f"import dcfl\nclass Mine(dcfl.Method):\n    name = {name!a}\n"
    Path("mine.py").write_text(text)
    for words in (["run", *FAST, "--method-file", "mine.py", "--out", "out"], ["check", "mine.py"]):
        code, _, err = main(*words)
        assert code == 2
        assert "is no name for a method" in err
        assert err.count("\n") == 1
    assert sorted(path.name for path in here.iterdir()) == ["mine.py"]


@quick
@given(hostile, st.sampled_from(["folder:/a/..", "folder:..", "sites:/x/\x1b"]))
def test_a_new_folder_is_below_runs(name: str, before: str) -> None:
    folder = new_folder(f"{before}{name}")
    assert folder.parent == Path("runs")
    assert folder.name not in (".", "..")
    assert folder.name.isprintable()
    assert len(os.fsencode(folder.name)) < 240


# Replies and reasons


@quick
@given(hostile)
def test_names_in_a_reply(name: str) -> None:
    weights, zero = {"w": torch.zeros(2)}, torch.zeros(2)
    broadcast = Broadcast(1, weights, {})
    honest = ClientUpdate(0, weights, {}, 1, 0, {})
    schema = Schema(METHODS["fedavg"](), TRAINING)
    for reply in (
        replace(honest, weights={**weights, name: zero}) if name != "w" else None,
        replace(honest, upload={name: torch.tensor([torch.nan])}),
        replace(honest, upload={name: torch.zeros(1, dtype=torch.complex64)}),
        replace(honest, metrics={name: float("inf")}),
    ):
        if reply is None:
            continue
        with pytest.raises(ProtocolError) as refused:
            check_update(reply, broadcast, schema)
        assert str(refused.value).isprintable()
        assert len(str(refused.value)) <= 500


@quick
@given(hostile)
def test_reasons(reason: str) -> None:
    failure = ClientFailure(3, reason)
    assert failure.reason.isprintable()
    assert len(failure.reason) <= 500
    assert str(failure) == f"client 3: {failure.reason}"


def test_the_reason_of_a_run_that_fails(here: Path) -> None:
    Path("mine.py").write_text(
        "import dcfl\n"
        "class Mine(dcfl.Method):\n"
        "    def objective(self, client):\n"
        "        raise RuntimeError('\\x1b[31m[/red]\\n\\u202e')\n"
    )
    code, _, err = main("run", "federation.rounds=4", "--method-file", "mine.py", "--out", "out")
    assert code == 4
    assert r"\x1b[31m[/red] \u202e" in err
    assert main("report", "out")[0] == 0
    assert "u202e" in assert_page(Path("out/report.html"), 4)
    assert main("check", "mine.py")[0] == 1
    assert "Traceback" in main("--debug", "run", "--method-file", "\x1b.py")[2]


def test_a_warning_is_one_plain_line(here: Path) -> None:
    class_folders(here / "data", ["a", "b"])
    Path("data/a/\x1b[31m\n.png").write_bytes(b"broken")
    code, _, err = main("data", "check", *small("data"), "data.broken=skip")
    assert (code, r"\x1b[31m\n.png" in err) == (0, True)


def test_the_progress_of_a_reproduction(capsys: pytest.CaptureFixture[str]) -> None:
    from dcfl.comparisons.cells import CellFolder
    from dcfl.comparisons.crew import News
    from dcfl.paper.recipe import RecipeCell
    from dcfl.paper.scales import Where

    where, plain = Where("digits", 0.3, 0.5), Experiment()
    cell_folder = CellFolder(
        RecipeCell("digits", "r", "c", 0, where, plain, plain), Path("nowhere")
    )
    Progress([cell_folder]).after(News(cell_folder, "failed", why="\x1b[31m\nred\udcff"))
    told = f"[1/1] {cell_folder.cell.name}  failed  \\x1b[31m\\nred\\udcff\n"
    assert capsys.readouterr().err == told


def test_flower_carries_valid_unicode_only() -> None:
    bundle = pytest.importorskip("dcfl.flower.deploy.submission")
    fine = apply(Experiment(), {"data": {"path": "\x1b\u202e"}})
    assert tomllib.loads(bundle.experiment_text(fine))["data"]["path"] == "\x1b\u202e"
    with pytest.raises(ConfigError, match="rename"):
        bundle.experiment_text(apply(Experiment(), {"data": {"path": BROKEN[0]}}))


def test_a_run_folder_that_safetensors_could_not_open(here: Path) -> None:
    folder = os.fsdecode(b"out-\xff")
    code, _, err = main("run", *FAST, "--out", folder)
    assert (code, err) == (2, "dcfl: out-\\udcff: the name is not valid UTF-8, choose another\n")
    assert not Path(folder).exists()
    write_run(Path("moved")).folder.rename(folder)
    assert main("report", folder)[0] == 0
    assert_page(Path(folder, "report.html"), 3)
