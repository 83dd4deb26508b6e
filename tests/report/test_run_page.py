import re
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from dcfl.errors import StorageError
from dcfl.report import write_report
from tests.report.folders import WEIGHTS_SHA256, write_run

HOSTILE = "<script>alert(1)</script>"


class Page:
    """The page taken apart: its tags, its visible text, its table cells by row."""

    def __init__(self, html: str) -> None:
        self.html = html
        self.text = words(re.sub(r"<(script|style).*?</\1>", "", html, flags=re.DOTALL))
        self.rows = [
            [words(cell) for cell in re.findall(r"<t[hd]\b[^>]*>(.*?)</t[hd]>", row, re.DOTALL)]
            for row in re.findall(r"<tr>(.*?)</tr>", html, re.DOTALL)
        ]

    def tags(self, name: str) -> list[str]:
        return re.findall(rf"<{name}\b[^>]*>", self.html)


def words(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


def page_of(*folders: Path) -> Page:
    return Page(write_report(*folders).read_text(encoding="utf-8"))


def two_methods_with_two_seeds(folder: Path) -> Path:
    """With one round each, MAX = EMA = final = the accuracy."""
    for method, accuracies in {"dcfl-pw": (52.0, 58.0), "fedavg": (50.0, 54.0)}.items():
        for seed, accuracy in enumerate(accuracies):
            write_run(folder / f"{method}-{seed}", [accuracy], method=method, seed=seed)
    return folder


def test_the_page_needs_nothing_but_itself(tmp_path: Path) -> None:
    page = page_of(two_methods_with_two_seeds(tmp_path))
    assert not re.search(r"(src|href|action)\s*=\s*[\"']?\s*(https?:|//)", page.html)
    assert not re.search(r"@import|url\((?!#)", page.html)
    assert not any("src" in script for script in page.tags("script"))
    assert not page.tags("link")
    figures = page.tags("figure")
    assert len(figures) == 4
    assert all(re.search(r'data-chart="[^"]{20,}"', figure) for figure in figures)


def test_means_and_paired_differences(tmp_path: Path) -> None:
    page = page_of(two_methods_with_two_seeds(tmp_path))
    header, first, second = page.rows[:3]
    assert header[4] == "EMA against fedavg"
    # 52 and 58: mean 55, deviation sqrt(18); 50 and 54: mean 52, deviation sqrt(8).
    # Paired: 52 - 50 = 2 and 58 - 54 = 4: mean 3, deviation sqrt(2), 12.71 / sqrt(2) times which
    # is 12.71: that is Student's quantile for one degree of freedom.
    assert first[:6] == ["fedavg", "2", "52.00 ± 2.83", "52.00 ± 2.83", "–", "52.00 ± 2.83"]
    assert second[:6] == [
        "dcfl-pw", "2", "55.00 ± 4.24", "55.00 ± 4.24", "+3.00 −9.71 to +15.71", "55.00 ± 4.24",
    ]  # fmt: skip
    # On the clients' own mixes, and the worst tenth of them.
    assert second[6:8] == ["54.00 ± 4.24", "5.50 ± 0.42"]
    assert second[8:] == ["1.00", "2.00", "1.5"]
    assert (
        "dcfl-pw has the highest EMA accuracy, 55.00 %. It cannot be told from fedavg "
        "(+3.00, 95 % interval −9.71 to +15.71, p = 0.205)." in page.text
    )
    assert "may be chance" not in page.text


def test_the_page_opens_with_the_verdict_and_the_curves_and_folds_remarks(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [50.0], finished=False)
    write_run(tmp_path / "b", [51.0], method="moon", finished=False)
    html = page_of(tmp_path).html
    places = ['<p class="headline">', "<figure", "<table", '<details class="cautions">', "<dl"]
    assert [html.index(place) for place in places] == sorted(map(html.index, places))


def test_the_order_of_the_folders_decides_who_is_compared_with(tmp_path: Path) -> None:
    two_methods_with_two_seeds(tmp_path)
    folders = [tmp_path / name for name in ("fedavg-0", "dcfl-pw-0")]
    out = write_report(*folders, out=tmp_path / "new" / "page.html")
    assert out == tmp_path / "new" / "page.html"
    page = Page(out.read_text(encoding="utf-8"))
    assert page.rows[2][4] == "+2.00"
    assert "accuracy, 52.00 %. It is 2.00 points above fedavg in one seed" in page.text
    assert "may be chance" in page.text


def test_one_run(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [20.0, 60.0, 50.0])
    page = page_of(tmp_path / "run")
    # EMA: 20, then 24, then 26.6. The clients' accuracy is one less.
    numbers = "50.00 60.00 26.60 49.00 5.00 3.00 6.00 4.5"
    assert " ".join(page.rows[1]) == f"fedavg 1 {numbers}"
    for words in (
        "fedavg on digits",
        "dirichlet-balanced, alpha = 0.3",
        "2 of 4 clients in each round (50 %)",
        WEIGHTS_SHA256,
    ):
        assert words in page.text
    for words in ("unfinished", "Failures", "different partitions"):
        assert words not in page.text


@pytest.mark.parametrize(
    ("settings", "scored"),
    [
        ({}, ""),
        ({"data.holdout": 0.1}, "on kept-back images"),
        ({"data.holdout": 0.1, "data.test_images": 50}, "on 50 kept-back images"),
        ({"data.test_images": 50}, "on 50 test images"),
    ],
)
def test_what_was_scored_is_said(tmp_path: Path, settings: dict[str, float], scored: str) -> None:
    write_run(tmp_path / "run", settings=settings)
    page = write_report(tmp_path / "run").read_text()
    assert ("<dt>Scored</dt>" in page) == bool(scored)
    assert f"<dd>{scored}</dd>" in page or not scored
    assert ("test accuracy" in page) == ("data.holdout" not in settings)


def test_an_unfinished_run_says_so(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [20.0, 60.0], finished=False, settings={"federation.rounds": 9})
    page = page_of(tmp_path / "run")
    assert "The run is unfinished: 2 of 9 rounds so far." in page.text
    assert page.rows[1][2] == "60.00"


def test_a_run_without_a_round_has_a_page(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [], finished=False)
    (tmp_path / "run" / "partition.npz").unlink()
    page = page_of(tmp_path / "run")
    assert "No round has ended yet." in page.text
    assert not page.tags("figure")


def test_untrusted_text_is_escaped(tmp_path: Path) -> None:
    folder = tmp_path / HOSTILE.replace("/", "")
    row = {"round": 1, "client": 3, "outcome": "failed", "reason": HOSTILE}
    write_run(folder, method=HOSTILE, class_names=[HOSTILE, '"><img src=x>'], clients=[row])
    page = page_of(folder)
    assert HOSTILE not in page.html
    assert not page.tags("img")
    assert HOSTILE in page.text


def test_failures_are_summed_up_by_reason(tmp_path: Path) -> None:
    out_of_memory = {"outcome": "failed", "reason": "no memory for /home/me/cache/x"}
    clients = [
        {"round": 1, "client": 2, **out_of_memory},
        {"round": 3, "client": 5, **out_of_memory},
        {"round": 3, "client": 1, "outcome": "ok", "reason": ""},
        {"round": 2, "client": 7, "outcome": "rejected", "reason": "weights are not finite"},
    ]
    write_run(tmp_path / "run", clients=clients, row_changes={2: {"used": 0, "train_loss": None}})
    page = page_of(tmp_path / "run")
    assert page.rows[-2:] == [
        ["run", "failed", "no memory for …/x", "2", "2, 5", "1, 3"],
        ["run", "rejected", "weights are not finite", "1", "7", "2"],
    ]
    assert "run: 1 round with too few usable replies; the model stayed as it was" in page.text


def test_sites_that_judge_are_shown_with_their_own_figures(tmp_path: Path) -> None:
    """And what a person was told of them: a site that is not heard any more keeps its last."""

    def site(client: int, accuracy: float, images: int, weight: float) -> dict[str, float]:
        return {"client": client, "accuracy": accuracy, "images": images, "weight": weight}

    first = [site(0, 5.0, 40, 1.0), site(1, 100.0, 120, 1 / 3)]
    told = {"sites": first, "notices": [f"node 7 {HOSTILE} cannot be used"]}
    last = {"sites": [site(0, 6.0, 40, 1.0)]}
    write_run(tmp_path / "run", row_changes={1: told, 3: last})
    page = page_of(tmp_path / "run")
    assert page.rows[-2:] == [
        ["site 0", "–", "40", "6.00", "3", "100.00"],
        ["site 1", "–", "120", "100.00", "1", "50.00"],
    ]
    assert f"Round 1: node 7 {HOSTILE} cannot be used." in page.text


def test_different_partitions_are_shown_apart(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_run(tmp_path / "split" / name, method=name, partition_sha256=name)
        for seed in (0, 1):
            folder = tmp_path / "seeds" / f"{name}{seed}"
            seeds = {"data.seed": seed, "federation.seed": seed}
            write_run(folder, method=name, settings=seeds, partition_sha256=f"{seed}")
    blurred, clear = page_of(tmp_path / "split").text, page_of(tmp_path / "seeds")
    assert "2 different partitions, so part of a difference" in blurred
    assert "2 different partitions, one for each seed" in clear.text
    assert re.findall("<h3>(seed .)</h3>", clear.html) == ["seed 0", "seed 1"]


def test_no_path_of_this_machine_is_in_the_page(tmp_path: Path) -> None:
    write_run(tmp_path / "run", settings={"data.dataset": f"folder:{tmp_path}/birds"})
    page = page_of(tmp_path / "run")
    assert str(tmp_path) not in page.html
    assert str(tmp_path.parent) not in page.html
    assert page_of(tmp_path / "run").html == page.html  # the same bytes again


def test_the_page_goes_where_it_is_expected(tmp_path: Path, monkeypatch) -> None:
    two_methods_with_two_seeds(tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    folders = Path("runs/fedavg-0"), Path("runs/fedavg-1")
    assert write_report(Path("runs/fedavg-0")) == Path("runs/fedavg-0/report.html")
    assert write_report(*folders) == Path("report.html")
    assert (tmp_path / "report.html").is_file()


def test_an_unwritable_place_is_a_storage_error(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be written"):
        write_report(tmp_path / "run", out=tmp_path / "file" / "report.html")


def test_a_page_about_many_clients_is_small_and_names_the_extremes(tmp_path: Path) -> None:
    counts = np.random.default_rng(0).integers(1, 9, (50_000, 10))
    counts[123], counts[45_678] = 0, 99
    write_run(tmp_path / "run", counts=counts)
    page = write_report(tmp_path / "run").read_text()
    assert len(page) < 600_000
    assert "the smallest is client 123, the largest client 45678" in page.lower()
    assert "0 to 990" in page
