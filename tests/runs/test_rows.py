"""Rows as values and as JSON, against the files of a run."""

import json
from dataclasses import MISSING, FrozenInstanceError, fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcfl.engines.engine import SiteScore
from dcfl.errors import RunFolderError
from dcfl.runs.rows import ClientRow, RoundRow, Row, Summary
from dcfl.settings import comments
from dcfl.system.json_types import Json

WRITTEN = Path(__file__).parent / "written_run"
ROUND: Json = json.loads((WRITTEN / "rounds.jsonl").read_text().splitlines()[0])
CLIENT: Json = json.loads((WRITTEN / "clients.jsonl").read_text().splitlines()[1])
SUMMARY: Json = json.loads((WRITTEN / "summary.json").read_text())
HERE = Path("some/rounds.jsonl")
KINDS: list[tuple[type[Row], Json]] = [
    (RoundRow, ROUND),
    (ClientRow, CLIENT),
    (Summary, SUMMARY),
]
each_kind = pytest.mark.parametrize(("kind", "written"), KINDS, ids=lambda kind: str(kind)[:40])


@each_kind
def test_every_field_says_what_it_means(kind: type[Row], written: Json) -> None:
    """The reference shows it."""
    assert {field.name for field in fields(kind)} == comments(kind).keys()


@pytest.mark.parametrize("name", ["rounds.jsonl", "clients.jsonl"])
def test_logs_are_written_as_they_were(name: str) -> None:
    kind = RoundRow if name == "rounds.jsonl" else ClientRow
    for line in (WRITTEN / name).read_text().splitlines():
        assert json.dumps(kind.from_json(json.loads(line), HERE).to_json()) == line


def test_summaries_are_written_as_they_were() -> None:
    text = json.dumps(Summary.from_json(SUMMARY, HERE).to_json(), indent=2)
    assert f"{text}\n" == (WRITTEN / "summary.json").read_text()


@each_kind
def test_what_was_not_known_then_may_be_missing(kind: type[Row], written: Json) -> None:
    needed = [
        field.name
        for field in fields(kind)
        if field.default is MISSING and field.default_factory is MISSING
    ]
    row = kind.from_json({name: written[name] for name in needed}, HERE)
    assert {name: row[name] for name in needed} == {name: written[name] for name in needed}
    for name in needed:
        shorter = {key: value for key, value in written.items() if key != name}
        with pytest.raises(RunFolderError, match=f"{name}.*required|{name}: "):
            kind.from_json(shorter, HERE)


@each_kind
def test_keys_of_another_version_pass(kind: type[Row], written: Json) -> None:
    assert kind.from_json({**written, "of_the_future": [1]}, HERE) == kind.from_json(written, HERE)


@each_kind
@given(value=st.sampled_from(["1", True, -1, [1], {"a": 1}, None, 1e300, 2**60]))
def test_no_value_is_bent_into_another(kind: type[Row], written: Json, value: object) -> None:
    """Whatever is read is what was written, or is refused."""
    for name in written:
        try:
            row = kind.from_json({**written, name: value}, HERE)
        except RunFolderError:
            pass
        else:
            assert row[name] == value
            assert type(row[name]) is type(value) or isinstance(row[name], float)


@each_kind
def test_rows_are_frozen_and_read_by_name(kind: type[Row], written: Json) -> None:
    row = kind.from_json(written, HERE)
    name = next(iter(written))
    assert row[name] == getattr(row, name)
    assert dict(row) == row.to_json()
    assert name in row
    with pytest.raises(KeyError):
        row["to_json"]
    with pytest.raises(FrozenInstanceError):
        setattr(row, name, row[name])


def test_an_accuracy_comes_with_its_best_and_average() -> None:
    with pytest.raises(RunFolderError, match="without max_accuracy or ema_accuracy"):
        RoundRow.from_json({**ROUND, "max_accuracy": None}, HERE)


def test_what_sites_say_is_written_and_read_again() -> None:
    score = {"client": 1, "accuracy": 50.0, "images": 20, "weight": 0.5}
    row = RoundRow.from_json({**ROUND, "sites": [score], "notices": ["node 7 is new"]}, HERE)
    assert row.sites == (SiteScore(1, 50.0, 20, 0.5),)
    again = json.loads(json.dumps(row.to_json()))
    assert RoundRow.from_json(again, HERE) == row
    with pytest.raises(RunFolderError, match=r"sites.0.weight"):
        RoundRow.from_json({**ROUND, "sites": [{**score, "weight": 1.5}]}, HERE)


def test_privacy_is_in_the_summary_where_there_was_some() -> None:
    assert "epsilon" not in Summary.from_json(SUMMARY, HERE).to_json()
    private = {"epsilon": None, "delta": 1e-5, "most_visits": 3, "secret_noise": False}
    written = Summary.from_json({**SUMMARY, **private}, HERE).to_json()
    assert {name: written[name] for name in private} == private
