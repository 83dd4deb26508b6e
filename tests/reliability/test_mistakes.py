"""A15: what users get wrong: one line that says so, the right exit code, never a traceback."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dcfl.methods import METHODS
from tests.cli.test_main import FAST
from tests.command_line import Call
from tests.reliability.victims import experiment, stopped, train


@pytest.fixture
def cli(cli: Call) -> Iterator[Call]:
    """In a folder with some things that are in the way."""
    Path("file").write_text("x")
    Path("folder").mkdir()
    Path("full").mkdir()
    Path("full/mine.txt").write_text("keep me")
    Path("binary.toml").write_bytes(b"\xff\xfe\x00\x01")
    Path("broken.toml").write_text("[data\nclients = 3")
    Path("twice.toml").write_text("[data]\nclients = 3\n[data]\nclients = 4\n")
    Path("flat.toml").write_text("clients = 3\n")
    Path("list.toml").write_text("[[data]]\nclients = 3\n")
    Path("deep.toml").write_text(f"[data]\nclients = {'[' * 3000}{']' * 3000}\n")
    Path("digits.toml").write_text(f"[data]\nclients = {'1' * 5000}\n")
    Path("hexadecimal.toml").write_text(f"[data]\nclients = 0x{'f' * 5000}\n")
    Path("code.toml").write_text('[method]\nname = "os:system"\n')
    Path("damaged/sub").mkdir(parents=True)
    Path("damaged/config.toml").write_text("[data\n")
    Path("empty.npz").write_bytes(b"")
    Path("method.py").write_text("raise RuntimeError('mine')\n")
    Path("nothing.py").write_text("x = 1\n")
    for name, field in FIELDS.items():
        Path(f"{name}.py").write_text(OWN_METHOD.format(field))
    other = OWN_METHOD.format("mu: float = 1.0").replace("class Own", "class Other")
    Path("both.py").write_text(OWN_METHOD.format("mu: float = 1.0") + other)
    known = dict(METHODS)
    yield cli
    METHODS.clear()
    METHODS.update(known)  # without those of our files


OWN_METHOD = """from dataclasses import dataclass, field
from dcfl import Method
@dataclass(frozen=True)
class Own(Method):
    {}
"""
FIELDS = {
    "required": "mu: float",
    "unknown_type": "mu: 'Nobody' = 1.0",
    "object": "mu: object = object()",
    "table": "mu: dict = field(default_factory=dict)",
}
RUN = ("run", *FAST)
REMOTE = ("data.dataset=remote", 'data.class_names=["a","b"]')
WITHOUT_SITES = [
    ("run", *REMOTE),
    ("run", *REMOTE, "--dry-run"),
    ("run", *REMOTE, "engine.name=flower-simulation"),
    ("data", "check", *REMOTE),
    ("partition", *REMOTE),
    ("compare", *REMOTE),
    ("sweep", *REMOTE, "training.lr=0.1,0.2", "data.holdout=0.1"),
]
MISTAKES: list[tuple[tuple[str, ...], int, str]] = [
    # paths
    (("run", "none.toml"), 2, "none.toml: no such config file"),
    (("run", "folder"), 2, "folder"),
    (("run", "binary.toml"), 2, "binary.toml"),
    (("run", "broken.toml"), 2, "not valid TOML"),
    (("run", "twice.toml"), 2, "not valid TOML"),
    (("run", "flat.toml"), 2, "must stand in a table"),
    (("run", "list.toml"), 2, "must stand in a table"),
    (("run", "deep.toml"), 2, "deep.toml: not valid TOML: lists and tables nested too deeply"),
    (("run", "digits.toml"), 2, "digits.toml: not valid TOML: a whole number with more digits"),
    (("run", "hexadecimal.toml"), 2, "not valid TOML: a whole number with more digits than any"),
    (("run", "data.dataset=all.csv"), 2, "dcfl.Dataset.of('all.csv', labels='COLUMN').save"),
    (("run", "data.dataset=sub/all.parquet"), 2, "then data.dataset=npz:all.npz"),
    (("run", "code.toml"), 2, "no method 'os:system'"),
    (("run", "broken.toml", "twice.toml"), 2, "one config file at a time"),
    ((*RUN, "--out", "file"), 2, "not a folder"),
    ((*RUN, "--out", "file/below"), 2, "not a folder"),
    ((*RUN, "--out", "full"), 2, "not empty"),
    ((*RUN, "output.dir=full"), 2, "not empty"),
    ((*RUN, "--out", "x" * 300), 3, "File name too long"),
    ((*RUN, "--out", "/proc/nope"), 3, "cannot be written"),
    ((*RUN, "data.dataset=npz:empty.npz"), 2, "empty.npz"),
    ((*RUN, "data.dataset=npz:folder"), 2, "folder"),
    ((*RUN, "data.dataset=folder:folder"), 2, "folder"),
    ((*RUN, "data.dataset=sites:file"), 2, "file"),
    ((*RUN, "data.dataset=folder:nowhere"), 2, "nowhere: no such folder"),
    ((*RUN, "data.dataset=npz:none.npz"), 2, "none.npz: no such file"),
    *(
        ((*RUN, f"data.dataset={name}"), 2, f"dcfl data get {name}")
        for name in ("cifar10", "cifar100", "tiny-imagenet")
    ),
    ((*RUN, "data.dataset=remote"), 2, "`dcfl flower run`"),
    *((words, 2, "`dcfl flower run`: the images are at the sites") for words in WITHOUT_SITES),
    ((*RUN, "--method-file", "none.py"), 2, "none.py: no such file"),
    ((*RUN, "--method-file", "method.py"), 2, "RuntimeError: mine"),
    ((*RUN, "--method-file", "nothing.py"), 2, "defines no method"),
    *(
        ((*RUN, "--method-file", f"{name}.py"), 2, "each of its fields needs a type and a default")
        for name in FIELDS
    ),
    ((*RUN, "data.dataset=npz:~nobody-of-that-name/x.npz"), 2, "no such file"),
    ((*RUN, 'output.dir="a\\u0000b"'), 2, "zero byte"),
    (("resume", "nowhere"), 2, "nowhere"),
    (("resume", "folder"), 2, "not a run folder"),
    (("resume", "file"), 2, "not a run folder"),
    (("resume", "damaged"), 2, "not valid TOML"),
    (("resume",), 2, "Missing argument"),
    (("report", "nowhere"), 2, "nowhere"),
    (("report",), 2, "Missing argument"),
    (("report", "folder"), 2, "holds no run"),
    (("report", "folder", "--target", "nan"), 2, "nan is no percentage"),
    (("compare", "--target", "nan"), 2, "nan is no percentage"),
    (("report", "file"), 2, "file"),
    (("partition", "--picture", "none/p.svg"), 2, "there is no folder"),
    (("partition", "--picture", "p.txt"), 2, "must end in .svg"),
    # numbers
    ((*RUN, "data.alpha=0"), 2, "data.alpha must be above 0"),
    ((*RUN, "data.alpha=-1"), 2, "data.alpha must be above 0"),
    ((*RUN, "data.alpha=nan"), 2, "data.alpha must be above 0"),
    ((*RUN, "data.clients=0"), 2, "data.clients must lie in 1 to 1,000,000"),
    ((*RUN, "data.clients=1443"), 2, "more than the 1442 training samples"),
    ((*RUN, "data.clients=99999999999"), 2, "out of range"),
    ((*RUN, f"data.clients={'9' * 5000}"), 2, "data.clients"),
    ((*RUN, "data.clients=2.5"), 2, "must be a whole number"),
    ((*RUN, "training.lr=nan"), 2, "training.lr must be"),
    ((*RUN, "training.lr=inf"), 2, "training.lr = inf is out of range"),
    ((*RUN, "training.lr=-0.1"), 2, "training.lr must be"),
    ((*RUN, "training.lr=fast"), 2, "training.lr must be a number"),
    ((*RUN, "training.batch_size=1"), 2, "no batch statistics"),
    ((*RUN, "training.epochs=0"), 2, "training.epochs"),
    ((*RUN, "training.momentum=1"), 2, "training.momentum"),
    ((*RUN, "federation.participation=1.5"), 2, "must lie in (0, 1]"),
    ((*RUN, "federation.participation=0"), 2, "must lie in (0, 1]"),
    ((*RUN, "data.partition=pathological", "data.per_client=11"), 2, "data.per_client"),
    ((*RUN, "data.image_size=3"), 2, "data.image_size"),
    ((*RUN, "federation.participation=0.001"), 2, "samples nobody"),
    ((*RUN, "federation.rounds=0"), 2, "federation.rounds"),
    ((*RUN, "federation.seed=-1"), 2, "federation.seed"),
    ((*RUN, "federation.deadline=inf"), 2, "federation.deadline"),
    ((*RUN, "federation.minimum_replies=3"), 2, "the model would never change"),
    ((*RUN, "federation.minimum_replies=0"), 2, "must be at least 1"),
    ((*RUN, "server.aggregation=krum"), 2, "needs 3 replies"),
    ((*RUN, "method.temperature=0"), 2, "temperature"),
    ((*RUN, "method.temperature=nan"), 2, "temperature"),
    ((*RUN, "method.mu=inf"), 2, "mu"),
    ((*RUN, "engine.workers=0"), 2, "engine.workers"),
    ((*RUN, "engine.threads=0"), 2, "engine.threads"),
    ((*RUN, "engine.memory_budget=-1"), 2, "engine.memory_budget"),
    ((*RUN, "output.checkpoint=-1"), 2, "output.checkpoint"),
    ((*RUN, "output.checkpoint=often"), 2, "output.checkpoint"),
    ((*RUN, "faults.crash=1.5"), 2, "faults"),
    ((*RUN, "faults.crash=0.6", "faults.exit=0.6"), 2, "faults"),
    ((*RUN, "faults.crash=nan"), 2, "faults"),
    ((*RUN, "faults.hang=0.1"), 2, "faults.hang needs federation.deadline"),
    # names and kinds
    ((*RUN, "data.alfa=1"), 2, "did you mean alpha"),
    ((*RUN, "dta.alpha=1"), 2, "did you mean data"),
    ((*RUN, "alpha=1"), 2, "not of the form section.key=value"),
    ((*RUN, "=1"), 2, "not of the form section.key=value"),
    (("run", "data.broken", "=", "skip"), 2, "write data.broken=skip, without spaces"),
    (("run", "a.toml", "data.alpha", "=", "1"), 2, "write data.alpha=1, without spaces"),
    ((*RUN, "data.dataset=mnist"), 2, "unknown data set 'mnist'"),
    ((*RUN, "data.flip=maybe"), 2, "data.flip must be"),
    ((*RUN, "data.clients=[3]"), 2, "must be a whole number"),
    ((*RUN, "data.clients={a=1}"), 2, "must be a whole number"),
    ((*RUN, "data.mean=[nan, 0.5, 0.5]", "data.std=[1, 1, 1]"), 2, "data."),
    ((*RUN, "method.name=moo"), 2, "did you mean moon"),
    ((*RUN, "method.name=[1]"), 2, "no method"),
    ((*RUN, "server.optimizer=[1]"), 2, "server.optimizer"),
    ((*RUN, "server.optimizer=adamw"), 2, "no optimiser"),
    ((*RUN, "engine.name=flower"), 2, "dcfl flower run"),
    ((*RUN, "engine.name=spark"), 2, "engine.name must be"),
    ((*RUN, "engine.device=tpu"), 2, "engine.device must be"),
    ((*RUN, "engine.device=cuda:9"), 2, "GPU"),
    ((*RUN, "attack.kind=prototype-flip", "method.name=fedavg"), 2, "sends nothing beside"),
    (("rum",), 2, "No such command"),
    (("run", "--rounds", "3"), 2, "No such option"),
    (("compare", "--seeds", "0,x"), 2, "whole numbers"),
    (("compare", "--methods", ""), 2, "no name for a method"),
    (("compare", "--methods", "fedavg,nope"), 2, "no method 'nope'"),
    (("methods", "none"), 2, "no method 'none'"),
    (("check", "nope"), 2, "no method 'nope'"),
    (("check", "nope.py"), 2, "nope.py: no such file"),
    (("data", "get", "mnist"), 2, "mnist"),
    (("check", "cnn", "--images", f"{'9' * 5000}x8x8"), 2, "give channels and size"),
    (("check", "cnn", "--images", "٣x٨x٨"), 2, "give channels and size"),
    (("compare", "--seeds", ""), 2, "takes whole numbers"),
    (("sweep", "training.lr=0.1,0.2", "data.holdout=0.1", "--seeds", ""), 2, "takes whole numbers"),
    (("flower", "audit", "flat.toml"), 2, "not one whole line of a site's record"),
    (("privacy", "--target-epsilon", "nan"), 2, "nan is no number"),
    (("privacy", "--participation", "nan"), 2, "nan is no number"),
    (("privacy", "--clients", "9" * 400), 2, "--clients"),
    (("privacy", "--rounds", str(10**18)), 2, "--rounds"),
    (("privacy", "--rounds", "100000", "--clients", "1000000"), 2, "take fewer of either"),
    (("evaluate", "folder", "--parts", ""), 2, "--parts are of --fine-tune"),
    ((*RUN, "--method-file", "both.py"), 2, "both.py defines own, other: say which"),
    (("new", "method", "9 lives"), 2, "is not a name"),
    (("new", "method", "torch"), 2, "would hide the Python module torch"),
    (("new", "method", "dcfl"), 2, "would hide the Python module dcfl"),
]


@pytest.mark.parametrize(
    ("words", "code", "message"), MISTAKES, ids=[f"{i}" for i in range(len(MISTAKES))]
)
def test_a_mistake_is_one_line_and_an_exit_code(
    cli: Call, words: tuple[str, ...], code: int, message: str
) -> None:
    got, out, err = cli(*words)
    lines = [line for line in err.splitlines() if not line.startswith("dcfl: warning: ")]
    assert "Traceback" not in err
    assert (got, len(lines), lines[-1][:6] if lines else "") == (code, 1, "dcfl: "), err[-500:]
    assert message in lines[0]
    assert out == ""
    assert Path("full/mine.txt").read_text() == "keep me"
    assert not [*Path("runs").glob("*")]


def test_there_are_enough_mistakes() -> None:
    assert len(MISTAKES) == len(set(MISTAKES)) >= 60


def test_mistakes_with_a_run_that_is_there(cli: Call) -> None:
    folder = stopped(experiment(Path("run")))
    code, _, err = cli("resume", str(folder))  # its model came from Python; its data are saved
    assert (code, err.count("\n")) == (2, 1), err
    assert "model was 'Flat" in err
    assert "a module from Python: give it to dcfl.resume as model=" in err
    code, _, err = cli("resume", str(folder), "--allow")
    assert (code, err.count("\n")) == (2, 1)
    code, _, err = cli("run", *FAST, "--out", str(folder))
    assert (code, err.count("\n")) == (2, 1)
    train(experiment(Path("ended"), rounds=1))
    Path("ended/summary.json").write_text("{")
    code, _, err = cli("resume", "ended")
    assert (code, err.count("\n")) == (2, 1)
    assert "summary.json is damaged" in err
    Path("ended/summary.json").unlink()
    Path("ended/rounds.jsonl").write_text('{"round": 1}\n')
    code, _, err = cli("report", "ended")
    assert (code, err.count("\n")) == (2, 1)
    assert "rounds.jsonl is damaged" in err


@pytest.mark.parametrize("section", ["engine", "method", "data", "federation", "training"])
def test_a_run_whose_config_lost_a_table_is_refused_or_resumed(cli: Call, section: str) -> None:
    assert cli("run", *FAST, "faults.crash=1", "federation.rounds=3", "--out", "run")[0] == 4
    path = Path("run/config.toml")
    head, _, tail = path.read_text().partition(f"[{section}]")
    path.write_text(head + "\n" + tail[tail.index("\n[") :])
    code, _, err = cli("resume", "run")
    lines = [line for line in err.splitlines() if not line.startswith("dcfl: warning: ")]
    assert "Traceback" not in err
    assert code in (0, 2, 4), err
    assert lines[-1].startswith("dcfl: ") or code == 0


LEGAL = {
    "one-class clients": ("data.partition=pathological", "data.per_client=1", "data.clients=10"),
    "a tiny temperature": ("method.temperature=1e-6",),
    "a huge temperature": ("method.temperature=1e6",),
    "no positives or negatives": ("training.batch_size=2", "method.name=dcfl-sw"),
    "no weight on the loss": ("method.mu=0",),
    "batches of two": ("training.batch_size=2", "method.name=fedrcl"),
    "batches larger than the client": ("training.batch_size=1024",),
    "one client": ("data.clients=1", "federation.participation=1"),
    "an IID split": ("data.alpha=inf",),
    "a very uneven split": ("data.alpha=0.01",),
    "all reply": ("federation.minimum_replies=2",),
    "never a checkpoint": ("output.checkpoint=0",),
    "a rare checkpoint": ("output.checkpoint=1000",),
}


@pytest.mark.parametrize("words", LEGAL.values(), ids=LEGAL)
def test_what_is_odd_but_legal_runs(cli: Call, words: tuple[str, ...]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        code, out, err = cli("run", "data.clients=20", *FAST, *words, "--json", "--out", "run")
    assert code == 0, err
    assert '"rounds": 2' in out
    assert "Traceback" not in err


def test_arrays_with_nan_are_refused(cli: Call) -> None:
    rng = np.random.default_rng(0)
    images = rng.random((40, 8, 8), dtype=np.float32)
    images[3, 2, 1] = np.nan
    labels = np.arange(40) % 4
    np.savez("nan.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    code, _, err = cli("run", *FAST, "data.dataset=npz:nan.npz")
    assert (code, err.count("\n")) == (2, 1), err


ODD_METHOD = """import sys, torch
from dataclasses import dataclass
from dcfl import Method
from torch.nn.functional import cross_entropy
@dataclass(frozen=True)
class Odd(Method):
    mu: float = 0.1
    def objective(self, client):
        {objective}
        return lambda batch: cross_entropy(client.model(batch.images).logits, batch.labels)
    def merge(self, shared, uploads, population):
        {merge}
        return shared
    def remember(self, client):
        return {remembered}
"""
PLAIN = {"objective": "pass", "merge": "pass", "remembered": "{}"}


@pytest.mark.parametrize(
    ("breaks", "code", "message"),
    [
        ({"merge": "sys.exit(0)"}, 2, "odd: merge raised SystemExit: 0"),
        (
            {"objective": "client.model.more = torch.nn.Linear(2, 2)"},
            2,
            "no longer has the tensors",
        ),
        ({"objective": "client.model.classifier.bias.data = torch.zeros(1)"}, 2, "no longer has"),
        ({"objective": "torch.set_grad_enabled(False)"}, 4, "no round had enough usable replies"),
        ({"remembered": "{'__metadata__': torch.zeros(1)}"}, 2, "files of tensors use it"),
    ],
    ids=["exits", "adds a layer", "resizes", "no gradients", "a name of safetensors"],
)
def test_what_a_method_breaks_is_no_bug_of_dcfl(
    cli: Call, breaks: dict[str, str], code: int, message: str
) -> None:
    Path("odd.py").write_text(ODD_METHOD.format(**{**PLAIN, **breaks}))
    got, _, err = cli(*RUN, "--method-file", "odd.py", "method.name=odd", "engine.workers=1")
    assert (got, "a bug in dcfl" in err) == (code, False), err[-500:]
    assert message in err


ODD_NETWORK = """import torch
from torch import nn
class Net(nn.Module):
    def __init__(self, size, classes):
        super().__init__()
        self.last = nn.{last}
        {more}
    def forward(self, images):
        {first}
        return self.last(images.flatten(1))
def net(channels, size, classes):
    return Net(channels * size * size, classes)
"""
LINEAR = {"last": "Linear(size, classes)", "more": "pass", "first": "pass"}


@pytest.mark.parametrize(
    ("breaks", "message"),
    [
        ({"last": "LazyLinear(classes)"}, "layers without sizes"),
        ({"more": "self._parameters['a.b'] = nn.Parameter(torch.ones(1))"}, "dots in their names"),
        (
            {
                "more": "self.register_buffer('seen', torch.zeros(1))",
                "first": "self.seen = torch.cat([self.seen, self.seen[:1]])",
            },
            "no longer has the tensors",
        ),
    ],
    ids=["lazy layers", "dots in names", "a buffer that grows"],
)
def test_what_a_network_breaks_is_no_bug_of_dcfl(
    cli: Call, breaks: dict[str, str], message: str
) -> None:
    Path("net.py").write_text(ODD_NETWORK.format(**{**LINEAR, **breaks}))
    code, _, err = cli(*RUN, "--model-file", "net.py", "method.name=fedavg", "engine.workers=1")
    assert (code, "a bug in dcfl" in err) == (2, False), err[-500:]
    assert message in err
