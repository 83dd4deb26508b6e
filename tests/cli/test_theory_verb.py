"""`dcfl theory` as a person types it."""

import json

import pytest
import typer
from typer.testing import CliRunner, Result

from dcfl.cli.paper_verbs import theory
from dcfl.errors import ConfigError

app = typer.Typer()
app.command()(theory)
QUICK = ["--repetitions", "200", "--samples", "8,64,128,256,512"]


def call(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def test_the_numbers_as_json_and_nothing_else() -> None:
    done = call(*QUICK, "--json")
    assert done.exit_code == 0
    assert call(*QUICK, "--json").stdout == done.stdout
    three, many = json.loads(done.stdout)["studies"]
    assert (three["dimension"], many["dimension"]) == (3, 128)
    assert three["limit"] == pytest.approx(-1.40478, abs=1e-5)
    assert [p["negatives"] for p in three["points"]] == [8, 64, 128, 256, 512]
    assert [(b["positives"], b["negatives"]) for b in three["batches"]] == [
        (1, 63),
        (1, 42),
        (21, 42),
    ]


def test_what_is_printed() -> None:
    printed = call(*QUICK).output
    for said in (
        "−1.40478",
        "bound / RMS",
        "mean · M tends to 3.54 and spread · √M to 1.04",
        "1 positive, 63 negatives",
        "21 positives, 42 negatives",
        "keeps 22 % of its pull",
    ):
        assert " ".join(said.split()) in " ".join(printed.split())  # lines may be broken anywhere


def test_a_cold_loss_does_not_reach_its_regime() -> None:
    words = ["--temperature", "0.05", "--dimension", "128", "--samples", "4,64"]
    done = call(*words, "--repetitions", "200")
    assert done.exit_code == 0
    assert "mean · M tends to" in done.output
    assert "nan" not in done.output
    assert "inf" not in done.output.split()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--temperature", "0"], "temperature must be from 0.01"),
        (["--temperature", "1e-9"], "temperature must be from 0.01"),
        (["--dimension", "3,1"], "dimension must be from 2"),
        (
            ["--dimension", "many"],
            "--dimension takes whole numbers of up to ten digits, such as 0,1,2, not 'many'",
        ),
        (["--samples", "4,,8"], "--samples takes whole numbers"),
        (["--samples", "4,0"], "1 or more negatives"),
        (["--repetitions", "1"], "repetitions must be at least 100"),
        (["--seed", "-1"], "seed must be 0 or more"),
    ],
)
def test_mistakes_are_one_line(words: list[str], said: str) -> None:
    done = call(*words)
    assert isinstance(done.exception, ConfigError)
    assert said in str(done.exception)
    assert "\n" not in str(done.exception)
    assert not done.stdout
