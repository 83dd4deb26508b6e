"""What a site withholds does not leave it, and a run goes on without it or is refused in a line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dcfl.cli.cards import run_card
from dcfl.config import as_tables, to_toml
from dcfl.errors import DCFLError, ProtocolError, TooFewClients
from dcfl.flower import codec
from dcfl.flower.client_app import app
from dcfl.flower.codec import Claim, Task
from dcfl.flower.site_failures import Refusal
from dcfl.flower.withholding import WORDS, withheld_from
from dcfl.models import build_model
from dcfl.runs.evaluations import read_evaluations
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


@pytest.mark.parametrize("withheld", ["class-counts", "sizes"])
def test_the_model_is_the_same_and_the_others_judge_it(
    withheld: str, sites: Trial, tmp_path: Path
) -> None:
    """To the last bit, from sites that tell less."""
    told = sites({}, {}).train(remote_experiment(tmp_path / "told"))
    kept = sites({"withhold": withheld}, {}).train(remote_experiment(tmp_path / "kept"))
    assert told.summary is not None
    assert kept.summary is not None
    assert told.summary.weights_sha256 == kept.summary.weights_sha256
    for before, after in zip(told.rounds, kept.rounds, strict=True):
        (_, south), (alone,) = before.sites, after.sites
        assert (alone.accuracy, alone.images) == (south.accuracy, south.images)
        assert after.accuracy == pytest.approx(south.accuracy)
    words = "scores, class-counts" + (", sizes" if withheld == "sizes" else "")
    assert kept.rounds[0].notices == (f"site 0 withholds {words}",)
    rows = [row for row in kept.clients if row.client == 0]
    assert all(not row.metrics for row in rows)
    examples = (1, 0) if withheld == "sizes" else (24, 3)
    assert [(row.num_examples, row.num_steps) for row in rows] == [examples] * 2
    (scored,) = read_evaluations(kept.folder)
    assert [client.name for client in scored.clients] == ["site 1"]
    assert scored.withheld == {"site 0": tuple(words.split(", "))}
    assert scored.notes == [f"without site 0, which withholds {words}"]
    assert f"scored  {scored.notes[0]}" in run_card(
        kept.summary, kept.rounds, "SuperNodes", kept.folder
    )
    recalls = {one.name: (one.images, one.recall) for one in kept.summary.recalls}
    assert recalls == {row.name: (row.images, row.recall) for row in scored.class_rows}
    assert len(read_evaluations(told.folder)[0].clients) == 2


def test_scores_are_not_told_and_others_judge(sites: Trial, tmp_path: Path) -> None:
    recorded = sites({"withhold": "scores"}, {}).train(remote_experiment(tmp_path / "out"))
    assert all(row.ok == 2 for row in recorded.rounds)
    assert all([site.client for site in row.sites] == [1] for row in recorded.rounds)
    assert all(("loss" in row.metrics) == (row.client == 1) for row in recorded.clients)
    losses = [row.metrics["loss"] for row in recorded.clients if row.client == 1]
    assert [row.train_loss for row in recorded.rounds] == pytest.approx(losses)
    (scored,) = read_evaluations(recorded.folder)
    assert scored.notes == ["without site 0, which withholds scores"]


@pytest.mark.parametrize("withheld", ["scores", "class-counts", "sizes"])
def test_a_run_that_nobody_would_judge_does_not_start(
    withheld: str, sites: Trial, tmp_path: Path
) -> None:
    rules = {"withhold": withheld}
    with pytest.raises(DCFLError) as caught:
        sites(rules, rules).train(remote_experiment(tmp_path / "out"))
    assert "all sites withhold scores" in str(caught.value)
    assert "it may withhold updates" in str(caught.value)
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
        ("train.default", "updates", Refusal.UPDATES_WITHHELD),
        ("evaluate.default", "scores", Refusal.SCORES_WITHHELD),
        ("evaluate", "class-counts", Refusal.SCORES_WITHHELD),
        ("evaluate.scores", "class-counts", Refusal.SCORES_WITHHELD),
        ("evaluate.personal", "sizes", Refusal.SCORES_WITHHELD),
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


def chosen_models(norm: str) -> Iterator[dict[str, Tensor]]:
    """What a curious server sends: the same answer to every image, shares of two answers, ordinary
    weights. Every score of the first is a share of classes."""
    model = build_model(remote_experiment(Path("x"), model__norm=norm).model, 3, 8, 2, 0)
    weights = model.state_dict()
    for bias in ([9.0, -9.0], [-9.0, 9.0], [0.1, 0.0], [1e30, 0.0]):
        silent = torch.zeros_like(weights["classifier.weight"])
        chosen = {"classifier.weight": silent, "classifier.bias": torch.tensor(bias)}
        yield {**weights, **chosen}
        yield {**weights, "classifier.bias": torch.tensor(bias)}
    yield weights


KINDS = ("train", "train.default", *(f"evaluate{of}" for of in ("", ".default", ".scores")))


@pytest.mark.filterwarnings("ignore:.*skipped 1 broken image")
@pytest.mark.parametrize("norm", ["group", "batch"])
@pytest.mark.parametrize(
    ("withheld", "counts"),
    [("class-counts", [(10, 20), (20, 10)]), ("sizes", [(10, 10), (85, 5)])],
)
def test_sites_that_differ_in_what_they_withhold_say_the_same(
    withheld: str, counts: list[tuple[int, int]], norm: str, tmp_path: Path
) -> None:
    """To a server that may ask anything of any model: all that leaves but the weights is the same
    to the last byte, and so are the counters among the weights."""
    said = []
    for place, (dark, light) in enumerate(counts):
        folder = pictures(tmp_path / str(place), dark, light)
        for number in range(place):
            (folder / "dark" / f"broken-{number}.png").write_text("no picture")
        rules = {"withhold": withheld, "broken": "skip"}
        node = {**Sites([folder], [rules]).node(0), "num-partitions": 2}
        answers = [asked("query.whoami", node, codec.message(TASK), model__norm=norm)]
        for weights in chosen_models(norm):
            for kind in KINDS:
                records = {"weights": codec.encode(weights), "shared": codec.encode({})}
                answer = asked(kind, node, codec.message(TASK, **records), model__norm=norm)
                if "weights" in answer:
                    sent = codec.decode(answer.pop("weights"))
                    told = {n: t for n, t in sent.items() if not t.is_floating_point()}
                    assert all((t == weights[n]) for n, t in told.items()) or withheld != "sizes"
                answers.append(answer)
        said.append([all_the_rest(answer) for answer in answers])
    assert said[0] == said[1]
    assert any("counts" in answer for answer in said[0])  # it trained


@pytest.mark.parametrize(
    "asking",
    [
        {"holdout": 0.02},
        {"holdout": 0.9},
        {"classes": 2, "holdout": 0.02},
        {"train_images": 1},
        {"test_skip": 5},
    ],
    ids=str,
)
def test_no_setting_asks_how_many_images_there_are(asking: dict[str, Any], tmp_path: Path) -> None:
    """A server refuses these, because it has no images. A share that is no image at one site and
    one at another would be answered by an error here and by a claim there: so of what a site keeps
    back itself (data.holdout) there is no error."""
    said = []
    for place, counts in enumerate([(10, 10), (40, 40), (3, 40)]):
        node = Sites([pictures(tmp_path / str(place), *counts)], [{"withhold": "sizes"}]).node(0)
        changes = {f"data__{key}": value for key, value in asking.items()}
        names = ["dark", "light", "none"]
        said.append(
            [
                all_the_rest(
                    asked(kind, node, codec.message(TASK), data__class_names=names, **changes)
                )
                for kind in ("query.whoami", "train")
            ]
        )
        answer = asked("query.whoami", node, codec.message(TASK), **changes)
        if [*asking] == ["holdout"]:
            assert "failed" not in answer
        else:
            assert answer["failed"]["code"] == "config"
    assert said[0] == said[1] == said[2]


def all_the_rest(answer: RecordDict) -> dict[str, Any]:
    """Without how often it was asked, and a salted hash."""
    return {name: record.deflate() for name, record in answer.items() if name != "record"}


def test_the_claim_is_read_as_it_was_meant(sites: Trial) -> None:
    told = {"": [4, 2], "class-counts": [], "sizes": [], "scores": [], "updates": [4, 2]}
    for words, images in told.items():
        node = sites({"withhold": words}, {}).node(0)
        content = asked("query.whoami", node, codec.message(TASK))
        examples = 1 if words in ("sizes", "updates") else 24
        claim = Claim(0, 2, images, withheld_from(words), examples=examples)
        assert codec.read_claim(content, TASK, 2) == claim
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
    assert found >= {*words}
    assert ("sizes" in found) == ("sizes" in words)
    assert ("class-counts" in found) == bool({*words} & {"class-counts", "sizes"})
    assert ("scores" in found) == bool({*words} & {"scores", "class-counts", "sizes"})


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
@pytest.mark.parametrize("withheld", ["", "scores", "class-counts", "sizes"])
def test_broken_pictures_that_are_left_out_are_told_like_sizes(
    withheld: str, tmp_path: Path
) -> None:
    folders = [pictures(tmp_path / name, 10, 10) for name in ("north", "south")]
    (folders[0] / "dark" / "000.png").write_text("no picture")
    trial = Sites(folders, [{"broken": "skip", "withhold": withheld}, {}])
    recorded = trial.train(remote_experiment(tmp_path / "out", federation__rounds=1))
    told = "site 0 leaves out 1 broken picture" in recorded.rounds[0].notices
    assert told == (withheld in ("", "scores"))
