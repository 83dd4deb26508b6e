import contextlib
import shlex
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcfl.config import (
    apply,
    as_tables,
    experiment_from,
    load_experiment,
    merge,
    parse_settings,
    to_toml,
)
from dcfl.data import DataSettings
from dcfl.errors import ConfigError
from dcfl.experiment import Experiment
from dcfl.local_training import LocalTraining
from dcfl.methods import METHODS
from dcfl.methods.dcfl import DCFLSampleWise
from dcfl.models import ModelSettings
from dcfl.server import ServerSettings
from dcfl.server.optimizers import FedAdam, FedAvgM


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_file_and_words_on_top(tmp_path: Path) -> None:
    file = written(
        tmp_path / "c.toml", '[data]\nclients = 7\nalpha = 1\n[method]\nname = "dcfl-sw"\nmu = 2\n'
    )
    experiment = experiment_from(file, parse_settings(["data.alpha=inf", "training.lr=1e-3"]))
    assert experiment.data.clients == 7
    assert experiment.data.alpha == float("inf")
    assert experiment.training.lr == 0.001
    assert isinstance(experiment.method, DCFLSampleWise)
    assert experiment.method.mu == 2.0


def test_naming_another_method_drops_the_fields_of_the_first(tmp_path: Path) -> None:
    file = written(tmp_path / "c.toml", '[method]\nname = "dcfl-sw"\nmu = 2\n')
    with pytest.warns(UserWarning, match=r"method.mu of the config belongs to dcfl-sw"):
        other = experiment_from(file, parse_settings(["method.name=fedavg"]))
    assert other.method == METHODS["fedavg"]()
    kept = experiment_from(file, parse_settings(["method.temperature=0.1"])).method
    assert (kept.name, kept.mu, kept.temperature) == ("dcfl-sw", 2.0, 0.1)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["data.alfa=1"], "unknown key data.alfa: did you mean alpha"),
        (["dta.alpha=1"], r"unknown table \[dta\]: did you mean data"),
        (["method.nu=1"], "unknown key method.nu: did you mean mu"),
        (["method.nme=moon"], "unknown key method.nme: did you mean name"),
        (["method.name=dcfl-pv"], "did you mean dcfl-pw"),
        (["method.name=3"], "no method 3"),
        (["training.lr=fast"], "training.lr must be a number, not 'fast'"),
        (["training.epochs=2.5"], "training.epochs must be a whole number, not 2.5"),
        (["training.epochs=true"], "training.epochs must be a whole number, not True"),
        (["method.name=dcfl-sw", "method.reduction=avg"], '"sum" or "mean", not \'avg\''),
        (["data.crop=wide"], "data.crop must be a whole number or \"auto\""),
        (["data.alpha=0"], "data.alpha must be above 0"),
        (["data.alpha=nan"], "data.alpha must be above 0"),
        (["data.alpha=-1"], "data.alpha must be above 0"),
        (["data.clients=0"], "data.clients must lie in 1 to 1,000,000"),
        (["federation.participation=0"], r"federation.participation must lie in \(0, 1\]"),
        (["federation.rounds=0"], "federation.rounds must be at least 1"),
        (["engine.device=tpu"], "engine.device must be"),
        (["engine.threads=0"], "engine.threads must lie in 1 to 1024"),
        (["model.norm=layer"], "model.norm must be"),
        (["method.name=fedavg", "method.mu=1"], "there is nothing to set"),
        (["training.batch_size=99999999999999999999"], "out of range"),
        (["data.min_size=1"], "data.min_size must be at least 2"),
        (["rounds=5"], "not of the form section.key=value"),
    ],
)  # fmt: skip
def test_mistakes_are_named(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        experiment_from(None, parse_settings(words))
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such config file"):
        experiment_from(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="not valid TOML"):
        experiment_from(written(tmp_path / "a.toml", "[data\n"))
    with pytest.raises(ConfigError, match="must stand in a table"):
        experiment_from(written(tmp_path / "b.toml", "rounds = 3\n"))
    with pytest.raises(ConfigError, match="cannot be read"):
        experiment_from(tmp_path)
    binary = tmp_path / "c.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        experiment_from(binary)


@pytest.mark.parametrize("method", METHODS)
def test_an_experiment_survives_being_written_as_toml(method: str, tmp_path: Path) -> None:
    experiment = experiment_from(
        None, {"method": {"name": method}, "data": {"alpha": float("inf")}}
    )
    file = written(tmp_path / "c.toml", to_toml(as_tables(experiment)))
    assert experiment_from(file) == experiment


@settings(max_examples=200)
@given(st.text() | st.integers() | st.booleans() | st.floats(allow_nan=False))
def test_values_survive_toml(value: object) -> None:
    assert tomllib.loads(f"key = {to_toml(value)}")["key"] == value


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(["data", "model", "training", "method", "federation", "engine", "nope"]),
    st.sampled_from(["clients", "alpha", "name", "lr", "rounds", "mu", "device", "seed", "x"]),
    st.text(max_size=8) | st.integers() | st.floats() | st.booleans() | st.lists(st.integers()),
)
def test_no_value_gets_past_as_anything_but_a_config_error(
    section: str, key: str, value: object
) -> None:
    with contextlib.suppress(ConfigError):
        assert isinstance(apply(Experiment(), {section: {key: value}}), Experiment)


def test_overrides_from_python() -> None:
    experiment = load_experiment(
        None,
        **{
            "method": "dcfl-sw",
            "federation": {"rounds": 3},
            "training.lr": 0.5,
            "model": ModelSettings(norm="group"),
        },
    )
    assert experiment.method == DCFLSampleWise()
    assert experiment.federation.rounds == 3
    assert experiment.training.lr == 0.5
    assert experiment.model.norm == "group"
    assert load_experiment(None, server="fedadam").server.optimizer == FedAdam()
    assert load_experiment(experiment, training=LocalTraining(epochs=9)).training.epochs == 9
    on_top = load_experiment(None, **{"method": DCFLSampleWise(mu=0.3), "method.temperature": 0.2})
    assert on_top.method == DCFLSampleWise(mu=0.3, temperature=0.2)
    assert load_experiment(None, method="dcfl-pw", data={"dataset": "cifar10"}).method.mu == 10  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "overrides",
    [
        {"rounds": 3},
        {"method": DCFLSampleWise},
        {"training": DCFLSampleWise()},
        {"metod": DCFLSampleWise()},
        {"metod": "fedavg"},
    ],
)
def test_overrides_that_fit_no_table_are_refused(overrides: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="table"):
        load_experiment(None, **overrides)


def test_naming_the_default_method_keeps_the_files_fields(tmp_path: Path) -> None:
    file = written(tmp_path / "c.toml", "\ufeff[method]\nmu = 0.7\n")  # with a byte order mark
    assert experiment_from(file, {"method": {"name": "dcfl-pw"}}).method.mu == 0.7  # type: ignore[attr-defined]


def test_naming_another_optimiser_drops_the_fields_of_the_first(tmp_path: Path) -> None:
    text = '[server]\naggregation = "samples"\noptimizer = "fedadam"\nlr = 0.1\n'
    file = written(tmp_path / "c.toml", text)
    with pytest.warns(UserWarning, match=r"server.lr of the config belongs to fedadam"):
        server = experiment_from(file, parse_settings(["server.optimizer=fedavgm"])).server
    assert server == ServerSettings("samples", FedAvgM())
    assert experiment_from(file, parse_settings(["server.beta1=0.5"])).server.optimizer == FedAdam(
        lr=0.1, beta1=0.5
    )


def test_the_server_table_holds_the_optimisers_fields(tmp_path: Path) -> None:
    words = ["server.optimizer=fedadam", "server.lr=0.1", "server.aggregation=samples"]
    server = experiment_from(None, parse_settings(words)).server
    assert server == ServerSettings("samples", FedAdam(lr=0.1))
    tables = as_tables(experiment_from(None, parse_settings(words)))
    assert tables["server"] == {
        "aggregation": "samples", "byzantine": 0.2, "clip_norm": 0.0, "optimizer": "fedadam",
        "lr": 0.1, "beta1": 0.9, "epsilon": 1e-3, "beta2": 0.99,
        "secure": False, "secure_range": 1.0, "secure_threshold": 0.66,
    }  # fmt: skip
    file = written(tmp_path / "c.toml", to_toml(tables))
    assert experiment_from(file).server == server
    with pytest.raises(ConfigError, match=r"unknown key server.lr"):
        experiment_from(None, parse_settings(["server.lr=0.1"]))
    with pytest.raises(ConfigError, match="no optimiser 'adam': did you mean fedadam"):
        experiment_from(None, parse_settings(["server.optimizer=adam"]))
    with pytest.raises(ConfigError, match="no optimiser 3"):
        experiment_from(None, parse_settings(["server.optimizer=3"]))
    with pytest.raises(ConfigError, match="did you mean optimizer"):
        experiment_from(None, parse_settings(["server.optimiser=fedadam"]))


# The DCFL paper's supplementary table.
PAPER_MU = {
    "moon": (5, 1, 1), "fedprox": (0.01, 0.001, 0.001), "feddecorr": (0.01, 0.01, 0.01),
    "fedproc": (10, 10, 10), "fedrcl": (1, 1, 1), "dcfl-sw": (10, 10, 1), "dcfl-pw": (10, 10, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", PAPER_MU)
def test_mu_is_the_papers_on_the_papers_data_sets(name: str) -> None:
    for dataset, mu in zip(("cifar10", "cifar100", "tiny-imagenet"), PAPER_MU[name], strict=True):
        tables = {"method": {"name": name}, "data": {"dataset": dataset}}
        assert experiment_from(None, tables).method.mu == mu  # type: ignore[attr-defined]
        digits = Experiment(data=DataSettings(dataset=dataset))
        assert apply(digits, {"method": {"name": name}}).method.name == name
        given = {**tables, "method": {"name": name, "mu": 0.5}}
        assert experiment_from(None, given).method.mu == 0.5  # type: ignore[attr-defined]
    plain = experiment_from(None, {"method": {"name": name}})
    assert plain.method == METHODS[name]()


def test_the_default_method_has_the_papers_mu_too() -> None:
    assert experiment_from(None, {"data": {"dataset": "cifar10"}}).method.mu == 10  # type: ignore[attr-defined]


def test_lists_become_tuples() -> None:
    words = ["method.name=fedrcl", "method.levels=[0, 2]"]
    assert experiment_from(None, parse_settings(words)).method.levels == (0, 2)  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="a list, each a whole number"):
        experiment_from(None, parse_settings(["method.name=fedrcl", "method.levels=[0.5]"]))


@pytest.mark.parametrize(
    ("setting", "typed"),
    [
        ("data.class_names=benign,malignant", """data.class_names='["benign","malignant"]'"""),
        (
            "data.class_names=[benign, 'no finding']",
            """data.class_names='["benign","no finding"]'""",
        ),
        ("data.window=40,400", "data.window='[40.0,400.0]'"),
        ("data.window=wide", ""),
    ],
)
def test_how_a_list_is_typed(setting: str, typed: str) -> None:
    with pytest.raises(ConfigError, match="must be a list, each") as refused:
        experiment_from(None, parse_settings([setting]))
    assert str(refused.value).partition(": a list is typed as ")[2] == typed
    if typed:
        experiment_from(None, parse_settings(shlex.split(typed)))


def test_merge_leaves_its_arguments_alone() -> None:
    base = {"data": {"alpha": 1.0}}
    assert merge(base, {"data": {"clients": 3}}) == {"data": {"alpha": 1.0, "clients": 3}}
    assert base == {"data": {"alpha": 1.0}}
