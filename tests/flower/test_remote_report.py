"""The page of a run whose pictures are at the sites: names, and what the sites chose to send."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from dcfl.cli.cards import run_card
from dcfl.cli.model_verbs import evaluate
from dcfl.config import as_tables, to_toml
from dcfl.data.settings import DataSettings
from dcfl.engines.engine import Session
from dcfl.experiment import EngineSettings, Experiment, FederationSettings, OutputSettings
from dcfl.flower.client_app import app
from dcfl.flower.deploy.server_app import named_sites
from dcfl.flower.engine import GridEngine
from dcfl.flower.roster import Roster
from dcfl.local_training import LocalTraining
from dcfl.runs.evaluations import read_evaluations
from dcfl.runs.folder import RecordedRun
from dcfl.runs.progress import Warnings, lost_words
from dcfl.runs.run import Run
from tests.flower.in_process import InProcessGrid

SITES = {"north": {"dark": 10, "light": 5}, "south": {"light": 20}, "west": {"dark": 5}}
ROSTER = Roster(3, names=tuple(SITES))
BROKEN = "west"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    """Three sites, of which the last has a broken picture and never takes part."""
    folder = tmp_path_factory.mktemp("remote")
    draw(folder / "scans")
    data = DataSettings("remote", clients=3, image_size=8, class_names=("dark", "light"))
    experiment = Experiment(
        data=data,
        training=LocalTraining(epochs=1),
        federation=FederationSettings(1, 1.0),
        engine=EngineSettings("flower", device="cpu"),
        output=OutputSettings(str(folder / "run")),
    )
    grid = InProcessGrid(app, 3, {"experiment": to_toml(as_tables(experiment))})
    for context, site in zip(grid.contexts.values(), SITES, strict=True):
        own = {"data": f"folder:{folder / 'scans' / site}", "memories": str(folder / site)}
        context.node_config.update(own)

    @contextmanager
    def connect(session: Session) -> Iterator[GridEngine]:
        yield GridEngine(session, grid, ROSTER)

    list(Run(experiment, named_sites(data, ROSTER), connect=connect).rounds())
    return RecordedRun.open(folder / "run")


def draw(scans: Path) -> None:
    for site, counts in SITES.items():
        for shade, count in counts.items():
            (scans / site / shade).mkdir(parents=True)
            for number in range(count):
                value = 200 if shade == "light" else 40
                picture = Image.new("RGB", (8, 8), (value + number,) * 3)
                picture.save(scans / site / shade / f"{number:02d}.png")
    (scans / BROKEN / "dark" / "01.png").write_text("no picture")


@pytest.fixture(scope="module")
def page(recorded: RecordedRun) -> str:
    return (recorded.folder / "report.html").read_text()


def table_after(page: str, heading: str) -> list[list[str]]:
    table = page[page.index(heading) :].split("<table", 1)[1].split("</table>", 1)[0]
    rows = re.findall(r"<tr.*?</tr>", table, re.DOTALL)
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]
    return [[re.sub(r"<[^>]+>", " ", cell).strip() for cell in row] for row in cells]


def test_sites_are_named_in_every_file(recorded: RecordedRun) -> None:
    assert recorded.site_names == dict(enumerate(SITES))
    (counted,) = read_evaluations(recorded.folder)
    assert [(one.name, one.by_class) for one in counted.clients] == [
        ("north", (2, 1)),
        ("south", (0, 4)),
    ]


def test_what_the_sites_have_is_what_they_sent(page: str) -> None:
    head, *rows = table_after(page, "What the sites have")
    assert head[:3] + head[6:] == [
        "Site", "Training images", "Test images", "dark, test", "light, test"
    ]  # fmt: skip
    assert [row[:3] + row[6:] for row in rows] == [
        ["north", "12", "3", "2", "1"],
        ["south", "16", "4", "0", "4"],
        ["west", "–", "–", "–", "–"],
    ]
    assert [row[3] == "–" for row in rows] == [False, False, True]  # west has said nothing


def test_all_test_images_are_counted_though_a_large_sites_weigh_less(page: str) -> None:
    assert table_after(page, "<h2>Evaluation</h2>")[1][1] == "7"
    told = "<p>last model, test images at the sites: sites are weighted so that none counts more"
    assert told in " ".join(page.split())


def test_failures_are_named(page: str) -> None:
    ((_, outcome, reason, _, clients, _),) = table_after(page, "<h2>Failures</h2>")[1:]
    assert (outcome, clients) == ("failed", "west")
    assert "one of its pictures is broken" in reason
    assert "site west (node 102) cannot be used" in page


def test_nothing_is_drawn_of_samples_that_nobody_here_knows(page: str) -> None:
    assert "Who owned which samples" not in page
    assert "over their mix of classes" not in page
    about = "accuracy of clients after the last round, each on its own test images"
    assert about in " ".join(page.split())


def test_a_given_split_has_no_alpha(page: str) -> None:
    facts = re.search(r"Partition</dt>\s*<dd[^>]*>([^<]*)</dd>", page)
    assert facts is not None
    assert facts[1] == "given"


def test_who_never_took_part_is_told_last_and_on_the_page(recorded: RecordedRun, page: str) -> None:
    assert recorded.summary is not None
    card = run_card(recorded.summary, recorded.rounds, "SuperNodes", recorded.folder)
    assert card.splitlines()[-1] == "absent  west took part in 0 of 1 rounds"
    assert "<li>west took part in 0 of 1 rounds.</li>" in page
    facts = re.search(r"Participation</dt>\s*<dd[^>]*>([^<]*)</dd>", page)
    assert facts is not None
    assert facts[1] == "3 of 3 clients in each round (100 %); 2 of 3 replies were used"


def test_images_and_recalls_agree_wherever_they_are_shown(
    recorded: RecordedRun, page: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """North has 2 dark and 1 light, south 4 light, of which each counts three quarters."""
    assert recorded.summary is not None
    found = {one.name: (one.images, one.recall) for one in recorded.summary.recalls}
    (record,) = read_evaluations(recorded.folder)
    assert {row.name: (row.images, row.recall) for row in record.class_rows} == found
    assert (record.images, record.scores.images) == (7, 6)
    assert [images for images, _ in found.values()] == [2, 5]
    card = run_card(recorded.summary, recorded.rounds, "SuperNodes", recorded.folder).splitlines()
    assert "scored  sites are weighted so that none counts more than the median one" in card
    assert "(2 images)" in next(line for line in card if line.startswith("recall"))
    rows = table_after(page, "<h2>Each class</h2>")[1:]
    assert rows == [[name, f"{n}", f"{recall:.2f}"] for name, (n, recall) in found.items()]
    evaluate(recorded.folder)
    shown = capsys.readouterr().out.splitlines()
    assert shown[:2] == [
        "the last model on 7 test images at the sites",
        "sites are weighted so that none counts more than the median one",
    ]
    assert [line.split()[:2] for line in shown if line.startswith(("dark", "light"))] == [
        ["dark", "2"],
        ["light", "5"],
    ]


def test_what_a_notice_says_is_not_said_again(recorded: RecordedRun) -> None:
    told: list[str] = []
    (row,) = recorded.rounds
    Warnings(recorded.folder, told.append)(row)
    assert told == [f"dcfl: warning: {notice}" for notice in row.notices]
    assert "west" in told[0]
    Warnings(recorded.folder, told.append)(replace(row, notices=()))
    assert told[-1].startswith("dcfl: warning: round 1: west failed: one of its pictures is broken")


def test_the_sites_and_not_this_machine_train(recorded: RecordedRun) -> None:
    assert "workers" not in recorded.environment
    assert lost_words(1) == "1 client lost"
    assert lost_words(2_000) == "2,000 clients lost"
