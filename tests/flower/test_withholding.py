"""What a site withholds does not leave it, and a run goes on without it or is refused in a line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ArrayRecord, Context, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from dcfl.cli.cards import run_card
from dcfl.config import as_tables, to_toml
from dcfl.errors import DCFLError, ProtocolError, TooFewClients
from dcfl.evaluation import Score
from dcfl.flower import codec
from dcfl.flower.client_app import app
from dcfl.flower.codec import Claim, Task
from dcfl.flower.site_evaluation import SiteResult, combine
from dcfl.flower.site_failures import Refusal
from dcfl.flower.withholding import WORDS, disclosed_images, disclosed_score, withheld_from
from dcfl.models import build_model
from dcfl.runs.evaluations import WEIGHTING, read_evaluations
from tests.flower.in_process import over_the_wire
from tests.flower.sites_in_process import RUN, Sites, pictures, remote_experiment

TASK = Task(RUN, 1, 0).ticketed()
Trial = Callable[..., Sites]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    disk = tmp_path_factory.mktemp("disk")
    return [pictures(disk / "north", 20, 10), pictures(disk / "south", 10, 40)]


@pytest.fixture
def sites(folders: list[Path], tmp_path: Path) -> Trial:
    """Each with a log of this test's own."""

    def trial(*rules: dict[str, Any]) -> Sites:
        logs = [{"audit": str(tmp_path / f"{place}.jsonl")} for place in range(2)]
        return Sites(folders, [{**log, **own} for log, own in zip(logs, rules, strict=True)])

    return trial


def asked(kind: str, node: dict[str, Any], content: RecordDict, **changes: Any) -> RecordDict:
    """What a SuperNode's client app answers, over the wire."""
    experiment = remote_experiment(Path("never written"), **changes)
    run = {"experiment": to_toml(as_tables(experiment))}
    message = Message(content, dst_node_id=1, message_type=kind)
    return over_the_wire(app(message, Context(1, 1, node, RecordDict(), run))).content


def initial_weights() -> ArrayRecord:
    model = build_model(remote_experiment(Path("x")).model, 3, 8, 2, 0)
    return codec.encode(model.state_dict())


def test_nothing_changes_but_what_is_told(sites: Trial, tmp_path: Path) -> None:
    """The same model, to the last bit, and the same accuracy, from sites that tell less."""
    told = sites({}, {}).train(remote_experiment(tmp_path / "told"))
    kept = sites({"withhold": "class-counts"}, {}).train(remote_experiment(tmp_path / "kept"))
    assert told.summary is not None
    assert kept.summary is not None
    assert told.summary.weights_sha256 == kept.summary.weights_sha256
    for before, after in zip(told.rounds, kept.rounds, strict=True):
        assert after.accuracy == pytest.approx(before.accuracy)
        assert after.loss == pytest.approx(before.loss)
    assert kept.rounds[0].notices == ("site 0 withholds class-counts",)
    (scored,) = read_evaluations(kept.folder)  # the other site's scores by class alone
    assert [client.name for client in scored.clients] == ["site 1"]
    assert scored.withheld == {"site 0": ("class-counts",)}
    without = "without site 0, which withholds class-counts; its test images are in the rounds'"
    assert scored.site_notes == [f"{without} accuracy alone"]
    card = run_card(kept.summary, kept.rounds, "SuperNodes", kept.folder)
    assert f"scored  {without}" in card
    weighted = any(site.weight < 1 for site in kept.rounds[-1].sites)
    assert (f"scored  {WEIGHTING}" in card) == weighted
    recalls = {one.name: (one.images, one.recall) for one in kept.summary.recalls}
    assert recalls == {row.name: (row.images, row.recall) for row in scored.class_rows}
    assert len(read_evaluations(told.folder)[0].clients) == 2


def test_sizes_are_not_told_and_the_site_weighs_as_the_median_one(
    sites: Trial, tmp_path: Path
) -> None:
    told = sites({}, {}).train(remote_experiment(tmp_path / "told"))
    trial = sites({"withhold": "sizes"}, {})
    kept = trial.train(remote_experiment(tmp_path / "kept"))
    assert kept.summary is not None
    assert told.summary is not None
    assert kept.summary.weights_sha256 == told.summary.weights_sha256
    rows = [row for row in kept.clients if row.client == 0]
    assert [(row.num_examples, row.num_steps) for row in rows] == [(1, 0)] * 2
    assert all("seconds" not in row.metrics for row in rows)
    for before, after in zip(told.rounds, kept.rounds, strict=True):
        (north, south), (alone, same) = before.sites, after.sites
        assert (same.accuracy, same.images) == (south.accuracy, south.images)
        assert alone.accuracy == round(north.accuracy)
        assert (alone.images, alone.weight) == (south.images, 1.0)
        assert after.accuracy == pytest.approx((alone.accuracy + south.accuracy) / 2)


def test_scores_are_not_told_and_others_judge(sites: Trial, tmp_path: Path) -> None:
    recorded = sites({"withhold": "scores"}, {}).train(remote_experiment(tmp_path / "out"))
    assert all(row.ok == 2 for row in recorded.rounds)
    assert all([site.client for site in row.sites] == [1] for row in recorded.rounds)
    assert all(("loss" in row.metrics) == (row.client == 1) for row in recorded.clients)
    losses = [row.metrics["loss"] for row in recorded.clients if row.client == 1]
    assert [row.train_loss for row in recorded.rounds] == pytest.approx(losses)
    (scored,) = read_evaluations(recorded.folder)
    assert scored.site_notes == ["without site 0, which withholds scores"]


def test_a_run_that_nobody_would_judge_does_not_start(sites: Trial, tmp_path: Path) -> None:
    rules = {"withhold": "scores"}
    with pytest.raises(DCFLError) as caught:
        sites(rules, rules).train(remote_experiment(tmp_path / "out"))
    assert "all sites withhold scores" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_site_may_judge_alone(sites: Trial, tmp_path: Path) -> None:
    trial = sites({"withhold": "updates"}, {})
    recorded = trial.train(remote_experiment(tmp_path / "out"))
    assert [(row.ok, row.failed, len(row.sites)) for row in recorded.rounds] == [(1, 1, 2)] * 2
    reasons = {row.reason for row in recorded.clients if row.client == 0}
    assert reasons == {Refusal.UPDATES_WITHHELD.value}
    assert {entry.asked for entry in trial.history(0).entries}.isdisjoint({"train"})


@pytest.mark.parametrize(
    ("withheld", "changes", "said"),
    [
        ("class-counts", {"method__name": "dcfl-pw"}, "what dcfl-pw sends beside the weights"),
        ("class-counts", {"method__name": "scaffold"}, "what scaffold sends beside the weights"),
        ("sizes", {"method__name": "fedproc"}, "what fedproc sends beside the weights"),
        ("sizes", {"server__aggregation": "samples"}, 'server.aggregation = "samples" weighs'),
        ("sizes", {"server__aggregation": "fednova"}, 'server.aggregation = "fednova" weighs'),
        ("score", {}, "unknown word score: did you mean scores?"),
    ],
)
def test_a_run_that_needs_it_is_refused_at_the_start(
    withheld: str, changes: dict[str, Any], said: str, sites: Trial, tmp_path: Path
) -> None:
    rules = {"withhold": withheld}
    with pytest.raises(DCFLError) as caught:
        sites(rules, rules).train(remote_experiment(tmp_path / "out", **changes))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "withheld", "refusal"),
    [
        ("train", "updates", Refusal.UPDATES_WITHHELD),
        ("evaluate", "scores", Refusal.SCORES_WITHHELD),
        ("evaluate.scores", "scores", Refusal.SCORES_WITHHELD),
        ("evaluate.scores", "class-counts", Refusal.CLASS_COUNTS_WITHHELD),
        ("evaluate.personal", "sizes", Refusal.CLASS_COUNTS_WITHHELD),
    ],
)
def test_a_server_that_asks_nevertheless_gets_a_refusal(
    kind: str, withheld: str, refusal: Refusal, sites: Trial
) -> None:
    """Before anything is computed: the message has no weights at all."""
    trial = sites({"withhold": withheld}, {})
    content = asked(kind, trial.node(0), codec.message(TASK))
    failed = content.config_records["failed"]
    assert dict(failed) == {"code": "refused", "reason": refusal.value, "partition-id": 0}
    if kind == "evaluate":
        with pytest.raises(ProtocolError, match=refusal.value):
            codec.read_score(content, TASK, [1, 1])


def test_sites_that_differ_in_what_they_withhold_say_the_same(tmp_path: Path) -> None:
    """The oracle: everything that leaves, but for the weights, is the same to the last bit."""
    mixes = {"class-counts": ((10, 20), (20, 10)), "sizes": ((10, 10), (25, 5))}
    for withheld, counts in mixes.items():
        said = []
        for place, (dark, light) in enumerate(counts):
            folder = pictures(tmp_path / withheld / str(place), dark, light)
            node = Sites([folder], [{"withhold": f"{withheld},scores"}]).node(0)
            claim = asked("query.whoami", {**node, "num-partitions": 2}, codec.message(TASK))
            weights = initial_weights()
            sent = codec.message(TASK, weights=weights, shared=codec.encode({}))
            update = asked("train", node, sent)
            assert "failed" not in update
            update.metric_records.get("metrics", {}).pop("seconds", None)
            rest = [(name, record) for name, record in update.items() if name != "weights"]
            said.append((claim, rest))
        assert said[0] == said[1], withheld


def test_the_claim_is_read_as_it_was_meant(sites: Trial) -> None:
    told = {"": [4, 2], "class-counts": [6], "sizes": [100], "scores": [4, 2]}
    for words, images in told.items():
        node = sites({"withhold": words}, {}).node(0)
        content = asked("query.whoami", node, codec.message(TASK))
        assert codec.read_claim(content, TASK, 2) == Claim(0, 2, images, withheld_from(words))
    with pytest.raises(ProtocolError, match="not a count for each class"):
        codec.read_claim(codec.claim_content(TASK, Claim(0, 2, [6])), TASK, 2)
    with pytest.raises(ProtocolError, match="no name here"):
        codec.read_claim(_strange_claim(), TASK, 2)


def _strange_claim() -> RecordDict:
    content = codec.claim_content(TASK, Claim(0, 2, [4, 2], frozenset({"scores"})))
    content.config_records["node"]["withheld"] = ["everything"]
    return content


@given(st.lists(st.sampled_from(WORDS)), st.randoms())
def test_words_are_read_in_any_order(words: list[str], chance: Any) -> None:
    chance.shuffle(words)
    found = withheld_from(" , ".join(words))
    assert found - {"class-counts"} == {*words} - {"class-counts"}
    assert ("class-counts" in found) == bool({*words} & {"class-counts", "sizes"})


COUNTS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=2, max_size=2)


@given(st.lists(COUNTS, min_size=1, max_size=5), st.data())
def test_class_counts_do_not_matter_to_the_accuracy_of_all(
    sites: list[list[tuple[int, int]]], data: st.DataObject
) -> None:
    """Whoever of the sites sends totals alone: accuracy and loss stay, recall is of the others."""
    full, some = [], []
    for place, counts in enumerate(sites):
        right = [min(pair) for pair in counts]
        images = [max(pair) for pair in counts]
        score = Score(right, [float(sum(images))])
        full.append(SiteResult(place, score, images))
        words = data.draw(st.sampled_from([frozenset(), frozenset({"class-counts"})]))
        told = disclosed_images(words, images), disclosed_score(words, score, images)
        some.append(SiteResult(place, told[1], told[0], words))
    exact, found = combine(full, 2), combine(some, 2)
    if exact is None:
        assert found is None
        return
    assert found is not None
    assert found.accuracy == pytest.approx(exact.accuracy)
    assert found.loss == pytest.approx(exact.loss)
    assert found.by_class.shape == exact.by_class.shape


@given(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(1, 10**6))
def test_a_site_without_a_size_has_the_say_of_the_others(size: int, hits: int, other: int) -> None:
    images, right = [size], [min(hits, size)]
    words = frozenset({"sizes", "class-counts"})
    score = disclosed_score(words, Score(right, [2.0 * size]), images)
    hidden = SiteResult(0, score, disclosed_images(words, images), words)
    shown = SiteResult(1, Score([other, 0], [0.0]), [other, 0])
    found = combine([hidden, shown], 2)
    assert found is not None
    assert found.accuracy == pytest.approx((round(100 * right[0] / size) + 100) / 2)
    assert found.loss == pytest.approx(1.0)
    assert found.by_class.nan_to_num(-1).tolist() == [100.0, -1.0]


def test_a_run_with_too_few_sites_ends_before_its_first_round(sites: Trial, tmp_path: Path) -> None:
    experiment = remote_experiment(tmp_path / "out", federation__minimum_replies=2)
    with pytest.raises(TooFewClients) as refused:
        sites({"withhold": "updates"}, {}).train(experiment)
    assert str(refused.value) == (
        "1 of 2 clients can train, and federation.minimum_replies = 2: "
        f"site 0: {Refusal.UPDATES_WITHHELD}"
    )
    with pytest.raises(TooFewClients, match=r"site 1: .*less than 2"):
        sites({}, {"privacy-noise": 2.0}).train(experiment)


@pytest.mark.filterwarnings("ignore:.*skipped 1 broken image")
@pytest.mark.parametrize("withheld", ["", "sizes"])
def test_broken_pictures_that_are_left_out_are_told_like_sizes(
    withheld: str, tmp_path: Path
) -> None:
    folders = [pictures(tmp_path / name, 10, 10) for name in ("north", "south")]
    (folders[0] / "dark" / "000.png").write_text("no picture")
    trial = Sites(folders, [{"broken": "skip", "withhold": withheld}, {}])
    recorded = trial.train(remote_experiment(tmp_path / "out", federation__rounds=1))
    told = "site 0 leaves out 1 broken picture" in recorded.rounds[0].notices
    assert told == (not withheld)
