"""As a person types it. The verb is registered here, whatever else the command line has."""

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import dcfl
import dcfl.cli.main
from dcfl.analysis.analysis_page import cautions, claim, headline, write_analysis
from dcfl.analysis.findings import Analysis, analyse_runs, labels
from dcfl.runs.folder import RecordedRun
from dcfl.testing.toys import toy_model
from tests import toys
from tests.analysis.trained import copied, train
from tests.command_line import Call

OWN_METHOD = """
from dataclasses import dataclass
import dcfl

@dataclass(frozen=True)
class Mine(dcfl.Method):
    mu: float = 1.0
"""


@pytest.fixture
def cli(cli: Call) -> Call:
    """`dcfl analyse WORDS`."""
    return partial(cli, "analyse")


@pytest.fixture(scope="module")
def both(fedproc: RecordedRun, dcfl_pw: RecordedRun) -> list[Analysis]:
    return analyse_runs([fedproc, dcfl_pw], clients=2)


def test_two_runs_side_by_side(both: list[Analysis], tmp_path: Path) -> None:
    page = write_analysis(both, tmp_path / "new" / "folder")
    text = page.read_text()
    assert len(text) < 2_000_000
    for words in ("fedproc", "dcfl-pw", "Alignment and uniformity", "Drift of a local round"):
        assert words in text
    assert ">nan" not in text
    found = json.loads((tmp_path / "new" / "folder" / "analysis.json").read_text())
    assert [each["run"] for each in found] == ["fedproc", "dcfl-pw"]
    for each, analysis in zip(found, both, strict=True):
        assert each["accuracy"] == pytest.approx(analysis.run.summary["final_accuracy"])
        assert each["images"] == 355
        counts = [sum(each["similarity"][kind]["counts"]) for kind in ("intra", "inter")]
        assert sum(counts) == 355 * 354 // 2
        assert each["drift"]["rehearsed"] is True
        assert len(each["drift"]["clients"]) == 2


def test_the_embedding_is_the_one_that_the_classifier_sees(both: list[Analysis]) -> None:
    analysis = both[0]
    dataset = dcfl.data.load_dataset(analysis.run.experiment.data)
    model = dcfl.load_model(analysis.run.folder)
    with torch.no_grad():
        output = model(dataset.preparation.clean(dataset.test.pixels))
    unit = torch.nn.functional.normalize(output.embedding.double(), dim=1)
    first, second = np.triu_indices(len(unit), 1)
    cosines = (unit[first] * unit[second]).sum(dim=1)
    same = dataset.test.labels[first] == dataset.test.labels[second]
    assert analysis.similarity.intra.mean == pytest.approx(float(cosines[same].mean()), abs=1e-6)
    assert analysis.similarity.inter.mean == pytest.approx(float(cosines[~same].mean()), abs=1e-6)


def test_what_the_paper_says_is_held_against_the_two_runs(both: list[Analysis]) -> None:
    (sentence,) = claim(both)
    ours, theirs = both[1].similarity, both[0].similarity
    nearer = ours.intra.mean > theirs.intra.mean
    assert f"nearer to 1: {'yes' if nearer else 'no'}" in sentence
    tighter = ours.inter.mean**2 + ours.inter.deviation**2 < (
        theirs.inter.mean**2 + theirs.inter.deviation**2
    )
    assert f"away from 0: {'yes' if tighter else 'no'}" in sentence
    assert claim(both[:1]) == claim([*both, both[0]]) == []
    assert "overlap least for" in headline(both)
    assert "within a class" in headline(both[:1])


def test_a_narrow_cone_is_not_gathered_around_zero(both: list[Analysis]) -> None:
    """However little its cosines differ from each other."""
    theirs, ours = both
    inter = replace(ours.similarity.inter, mean=0.9, deviation=0.01)
    cone = replace(ours, similarity=replace(ours.similarity, inter=inter))
    wide = replace(theirs.similarity.inter, mean=0.3, deviation=0.2)
    spread = replace(theirs, similarity=replace(theirs.similarity, inter=wide))
    (sentence,) = claim([spread, cone])
    assert "nearer to 0: no" in sentence
    assert "away from 0: no" in sentence


def test_images_that_were_kept_back_are_not_called_test_images(
    both: list[Analysis], tmp_path: Path
) -> None:
    held = {"method.name": "fedavg", "data.holdout": 0.1}
    (kept,) = analyse_runs([train(tmp_path / "run", **held)], drift=False)
    assert kept.images == 144
    assert kept.accuracy == pytest.approx(kept.run.summary["final_accuracy"])
    assert kept.as_json()["kind_of_images"] == "kept-back training images"
    text = write_analysis([kept], tmp_path / "alone").read_text()
    assert "144 kept-back training images" in text
    assert "data.holdout = 0.1" in text
    assert "different images" in " ".join(cautions([kept, both[0]]))
    assert "different images" not in " ".join(cautions(both))


@pytest.mark.slow
def test_many_runs_and_many_classes(both: list[Analysis], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(3000, 2)) / 3
    plane = replace(both[0].plane, points=points, labels=rng.integers(0, 100, 3000))
    names = tuple(f"class <{number}>" for number in range(100))
    many = [replace(both[0], label=f"<{name}>", plane=plane, class_names=names) for name in "abcd"]
    text = write_analysis(many, tmp_path, tmp_path / "print").read_text()
    assert len(text) < 5_000_000
    assert "10 of the 100 classes" in text
    assert "<a>" not in text
    (drawn,) = (tmp_path / "print").glob("*in-two-dimensions.svg")  # points are pixels there
    assert len(drawn.read_text()) < 1_000_000


def test_a_representation_without_pairs_of_one_kind(both: list[Analysis], tmp_path: Path) -> None:
    nobody = replace(
        both[0].similarity.inter,
        pairs=0,
        mean=math.nan,
        deviation=math.nan,
        percentiles=(math.nan,) * 3,
        counts=np.zeros(200, dtype=np.int64),
    )
    similarity = replace(both[0].similarity, inter=nobody, overlap=math.nan)
    lonely = replace(both[0], similarity=similarity, drift=None)
    assert "Drift" not in write_analysis([lonely], tmp_path / "alone").read_text()
    assert "Drift" in write_analysis([lonely, both[1]], tmp_path / "beside").read_text()
    stored = json.loads((tmp_path / "alone" / "analysis.json").read_text())
    assert stored[0]["similarity"]["overlap"] is None
    assert lonely.as_json()["drift"] is None


def test_labels_are_methods_until_two_are_the_same(
    fedproc: RecordedRun, dcfl_pw: RecordedRun, tmp_path: Path
) -> None:
    assert labels([fedproc, dcfl_pw]) == ["fedproc", "dcfl-pw"]
    copy = RecordedRun(tmp_path / "copy")
    copy.folder.mkdir()
    (copy.folder / "config.toml").write_text(fedproc.config_text)
    assert labels([fedproc, copy]) == ["a", "copy"]


def test_the_verb(cli: Call, fedproc: RecordedRun, dcfl_pw: RecordedRun, tmp_path: Path) -> None:
    code, out, err = cli(fedproc.folder, dcfl_pw.folder, "--clients", "2")
    assert (code, out.splitlines()[-1]) == (0, "page  analysis/analysis.html")
    for words in ("fedproc, same class", "dcfl-pw", "overlap %", "Drift of a local round"):
        assert words in out
    assert "2 clients rehearse" in err
    assert (tmp_path / "analysis" / "analysis.html").is_file()


def test_the_verb_in_json_and_without_drift(
    cli: Call, fedproc: RecordedRun, tmp_path: Path
) -> None:
    code, out, err = cli(fedproc.folder, "--json", "--no-drift", "--out", "there")
    found = json.loads(out)
    assert code == 0
    assert found["runs"][0]["drift"] is None
    assert found["page"] == "there/analysis.html"
    assert "clients" not in err
    assert "Drift" not in (tmp_path / "there" / "analysis.html").read_text()


def test_without_out_the_page_is_in_the_runs_folder(
    cli: Call, fedavg: RecordedRun, tmp_path: Path
) -> None:
    copied(fedavg, tmp_path / "mine")
    code, out, _ = cli("mine", "--no-drift")
    assert (code, out.splitlines()[-1]) == (0, "page  mine/analysis/analysis.html")


def refused(answer: tuple[int, str, str], *words: str) -> None:
    code, out, err = answer
    assert (code, out) == (2, "")
    assert err.startswith("dcfl: ")
    assert err.count("\n") == 1
    for word in words:
        assert word in err


def test_no_such_folder_and_no_run(cli: Call, tmp_path: Path) -> None:
    refused(cli("nowhere"), "nowhere: no such folder")
    refused(cli(tmp_path), "holds no run")


def test_an_unfinished_run(cli: Call, fedproc: RecordedRun, tmp_path: Path) -> None:
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "config.toml").write_text(fedproc.config_text)
    refused(cli(fedproc.folder, "half"), "half", "has the run finished?")


def test_a_model_of_the_users_own(cli: Call, tmp_path: Path) -> None:
    dcfl.run(
        out=tmp_path / "own",
        dataset=toys.dataset(),
        model=toy_model(),
        **{"method.name": "fedavg", "data.clients": 2, "federation.rounds": 1, "data.min_size": 2,
           "federation.participation": 1.0, "engine.workers": 1},
    )  # fmt: skip
    refused(cli("own"), "a module from Python")


def test_data_that_is_gone_or_elsewhere(cli: Call, fedproc: RecordedRun, tmp_path: Path) -> None:
    for name, dataset, *words in (
        ("moved", "npz:gone.npz", "no longer there", "gone.npz"),
        ("far", "remote", "never left the sites"),
    ):
        folder = copied(fedproc, tmp_path / name).folder
        text = fedproc.config_text.replace('dataset = "digits"', f'dataset = "{dataset}"')
        if dataset == "remote":
            text = text.replace("class_names = []", 'class_names = ["a", "b"]')
        (folder / "config.toml").write_text(text)
        refused(cli(name), name, *words)


def test_data_that_has_changed(cli: Call, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "x_train": rng.integers(0, 256, (80, 8, 8, 1), dtype=np.uint8),
        "y_train": np.arange(80) % 4,
        "x_test": rng.integers(0, 256, (40, 8, 8, 1), dtype=np.uint8),
        "y_test": np.arange(40) % 4,
    }
    np.savez(tmp_path / "own.npz", **arrays)
    own = {"method.name": "fedavg", "data.dataset": f"npz:{tmp_path / 'own.npz'}"}
    train(tmp_path / "run", **{**own, "data.clients": 4, "data.min_size": 2,
                               "federation.participation": 0.5})  # fmt: skip
    np.savez(tmp_path / "own.npz", **{**arrays, "y_test": (np.arange(40) + 1) % 4})
    refused(cli("run"), "are not those that the run was trained and scored on")
    environment = tmp_path / "run" / "environment.json"  # damaged: without a hash
    recorded = json.loads(environment.read_text())
    del recorded["data"]
    environment.write_text(json.dumps(recorded))
    code, _, err = cli("run", "--no-drift")
    assert code == 0
    assert "the images may have changed" in err
    np.savez(tmp_path / "own.npz", **{**arrays, "x_train": arrays["x_train"] // 2})
    refused(cli("run"), "is not what it was")


def test_scores_in_half_precision_are_not_taken_for_other_images(
    cli: Call, fedavg: RecordedRun, tmp_path: Path
) -> None:
    run = copied(fedavg, tmp_path / "run")
    *earlier, last = (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()
    row = json.loads(last)
    row["accuracy"] += 0.2 if row["accuracy"] < 50 else -0.2
    (tmp_path / "run" / "rounds.jsonl").write_text("\n".join([*earlier, json.dumps(row)]) + "\n")
    assert "the images may have changed" in cli("run", "--no-drift")[2]
    text = run.config_text.replace('precision = "float32"', 'precision = "bfloat16"')
    (tmp_path / "run" / "config.toml").write_text(text)
    code, _, err = cli("run", "--no-drift")
    assert code == 0
    assert "the images may have changed" not in err


def test_a_method_of_ones_own_is_named(cli: Call, fedavg: RecordedRun, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN_METHOD)
    run = copied(fedavg, tmp_path / "run")
    text = run.config_text.replace('name = "fedavg"', 'name = "mine"', 1)
    (tmp_path / "run" / "config.toml").write_text(text)
    try:
        refused(cli("run"), "--method-file")
        code, out, _ = cli("run", "--method-file", "mine.py", "--clients", "1")
        assert (code, "mine" in out) == (0, True)
    finally:
        dcfl.METHODS.pop("mine", None)
