"""FedRep, FedPer and LG-FedAvg against the code of FedRep's authors; all as settings."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.oracles.problem import TRAINING, Tiny, numbers, our_rounds
from dcfl.errors import ConfigError
from dcfl.experiment import Experiment, OutputSettings
from dcfl.local_training import LocalTraining
from dcfl.messages import Tensors
from dcfl.methods import METHODS
from dcfl.methods.fedavg import FedAvg
from dcfl.methods.personal.fedrep import FedBN, FedPer, FedRep, LGFedAvg
from dcfl.models.parts import personal_and_rest, personal_tensors, personalise
from dcfl.runs.folder import RecordedRun
from dcfl.server.server import ServerSettings
from dcfl.tensors import split
from dcfl.testing.toys import toy_model
from tests.engines.runs import federation, trained
from tests.methods.zoo.oracle import DOUBLE, error, oracle

THEIRS = oracle("fedrep")
NAMES = {"fedrep": FedRep, "fedper": FedPer, "lg": LGFedAvg}


@pytest.mark.parametrize("name", NAMES)
def test_both_parts_end_where_the_authors_do(name: str) -> None:
    training = replace(
        TRAINING,
        momentum=THEIRS["momentum"],
        weight_decay=THEIRS["weight_decay"],
        decay_norm_and_bias=False,
    )
    memories, theirs = dict[int, Tensors](), THEIRS["runs"][name]
    ours = our_rounds(
        NAMES[name](),
        THEIRS["cohorts"],
        ServerSettings(aggregation="samples"),
        training,
        memories=memories,
    )
    start = Tiny().state_dict()
    for weights, others in zip(ours, theirs["rounds"], strict=True):
        sent, personal = split(weights, others)
        assert error(numbers(sent), others) <= DOUBLE
        assert all(tensor.equal(start[part]) for part, tensor in personal.items())
    for client, own in enumerate(theirs["own"]):
        assert error(numbers(personal_and_rest(memories[client])[0]), own) <= DOUBLE
        assert error(numbers({part: start[part] for part in own}), own) > 0.05


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("fedbn", ["norms"]),
        ("fedper", ["classifier"]),
        ("lg-fedavg", ["convolutions", "norms"]),
        ("fedrep", ["classifier"]),
    ],
)
def test_the_name_has_the_bits_of_the_setting(name: str, parts: list[str], tmp_path: Path) -> None:
    head = int(name == "fedrep")
    once, twice = (LocalTraining(epochs, 8, lr=0.05) for epochs in (1, 1 + head))
    small = {"rounds": 2, "dataset": federation((3, 10, 5))}
    named = trained(tmp_path / "a", METHODS[name](), 1, training=twice, **small)
    setting = replace(once, head_epochs=head)
    plain = trained(tmp_path / "b", FedAvg(), 1, training=setting, personal=tuple(parts), **small)
    ours, theirs = (RecordedRun.open(run.folder) for run in (named, plain))
    assert ours.summary.weights_sha256 == theirs.summary.weights_sha256
    assert ours.summary.bytes_up == theirs.summary.bytes_up
    assert [row.to_json() for row in ours.personal] == [row.to_json() for row in theirs.personal]
    assert len(ours.personal) == 3


def test_what_cannot_be_is_said_in_a_line() -> None:
    with pytest.raises(ConfigError, match=r"fedbn.*: the model has no normalisation layers"):
        personalise(Tiny(), FedBN.personal, "fedbn")
    with pytest.raises(ConfigError, match="keep_best or method lg-fedavg"):
        Experiment(method=LGFedAvg(), output=OutputSettings(keep_best=True))
    with pytest.raises(ConfigError, match=r"more than method\.body_epochs"):
        our_rounds(FedRep(body_epochs=TRAINING.epochs), [[0]])
    with pytest.raises(ConfigError, match=r"head_epochs: set method\.body_epochs instead"):
        our_rounds(FedRep(), [[0]], training=replace(TRAINING, head_epochs=1))


def test_all_but_the_classifier_is_all_the_rest() -> None:
    model = toy_model()
    personalise(model, LGFedAvg.personal)
    rest = model.state_dict().keys() - personal_tensors(model).keys()
    assert rest == {"classifier.weight", "classifier.bias"}
