"""Run folders from outside: whatever is wrong with one, it is read or refused in one line.

A seeded fuzzer: bits, lengths, types, values, whole files. Each mutation meets everything that
reads a run folder.
"""

from __future__ import annotations

import io
import json
import os
import random
import re
import shutil
import struct
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from dcfl.cli import model_verbs as analysis
from dcfl.cli.options import experiment_of
from dcfl.cli.tables import comparison_table
from dcfl.comparisons.groups import group_runs
from dcfl.comparisons.standing import Standing
from dcfl.data.identical import read_digests
from dcfl.errors import DCFLError, RunFolderError
from dcfl.report import write_report
from dcfl.runs.folder import RecordedRun
from dcfl.runs.model_file import load_model, write_model
from dcfl.runs.prepare import prepare
from dcfl.runs.rows import RoundRow
from dcfl.runs.run import Run
from dcfl.system.storage import strict_json
from dcfl.tensors import checksum
from dcfl.trained.subject import open_subject
from tests.reliability.victims import (
    DATA,
    SLOW,
    damaged,
    experiment,
    flat,
    interrupted,
    refusal,
    resume,
    stopped,
)

MUTATIONS = 4_000 if SLOW else 400
PAGES = 10 if SLOW else 40  # every so many-th mutation is drawn as a page, which takes a second
RESUMED = 400 if SLOW else 40
WORDS = (
    "data.clients=4", "federation.participation=0.5", "federation.rounds=3", "training.epochs=1",
    "engine.workers=1", "output.checkpoint=1", "model.norm=group",
)  # fmt: skip

NASTY: list[Any] = [
    None, True, False, 0, -1, 1, 3.5, -0.5, 1e308, -1e308, 2**63, 10**400, "", "x", "nan", "\ud800",
    "\x1b[2J", "a" * 200_000, [], [1], [None], {}, {"a": 1}, [[1, 2]], float("nan"), float("inf"),
]  # fmt: skip
NASTY_TOML = [
    "nan", "-inf", "inf", "true", '""', '"x"', "[]", "[[1]]", "{}", "{a = 1}", "0", "-1", "2.5",
    "1979-05-27", "1e400", "9223372036854775807",
]  # fmt: skip


# Mutations ----------------------------------------------------------------------------------------


def of_bytes(path: Path, rng: random.Random) -> None:
    data, kind = path.read_bytes(), rng.randrange(8)
    path.unlink()
    if kind == 0:
        path.mkdir()
    elif kind > 1:
        path.write_bytes(damaged(data, rng))


def somewhere(value: Any, rng: random.Random) -> tuple[Any, Any]:
    """A container in this value, and a key of it."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = rng.choice(keys)
    inner = value[key]
    if isinstance(inner, dict | list) and inner and rng.random() < 0.6:
        return somewhere(inner, rng)
    return value, key


def nastier(value: Any, rng: random.Random) -> Any:
    container, key = somewhere(value, rng)
    if isinstance(container, dict) and rng.random() < 0.2:
        del container[key]
    else:
        container[key] = rng.choice(NASTY)
    return value if rng.random() < 0.95 else rng.choice(NASTY)


def of_json(path: Path, rng: random.Random) -> None:
    path.write_text(json.dumps(nastier(json.loads(path.read_text()), rng)))


def of_rows(path: Path, rng: random.Random) -> None:
    lines = path.read_text().splitlines()
    at = rng.randrange(len(lines))
    lines[at] = json.dumps(nastier(json.loads(lines[at]), rng))
    if rng.random() < 0.1:
        lines[at] = "[" * 100_000
    path.write_text("\n".join(lines) + "\n")


def of_toml(path: Path, rng: random.Random) -> None:
    lines = path.read_text().splitlines()
    settings = [number for number, line in enumerate(lines) if " = " in line]
    at = rng.choice(settings)
    lines[at] = f"{lines[at].split(' = ')[0]} = {rng.choice(NASTY_TOML)}"
    path.write_text("\n".join(lines))


ARRAYS: list[Callable[[Any], Any]] = [
    lambda array: array.astype(np.float64) if array.dtype.kind in "iu" else np.arange(3),
    lambda array: array[..., None],
    lambda array: array.reshape(-1)[:0],
    lambda array: np.array(7),
    lambda array: np.array([1 + 2j]),
    lambda array: np.zeros((4, 10), dtype="datetime64[s]"),
    lambda array: np.full((4, 10), -5) if array.ndim == 2 else array[:-1] if array.ndim else array,
    lambda array: np.full((4, 10), 2**62) if array.ndim == 2 else np.array([b"\xff"]),
    lambda array: np.zeros((0, 10), dtype=np.int64),
    lambda array: np.array(["a" * 1000] * 10),
]


def of_npz(path: Path, rng: random.Random) -> None:
    with np.load(path) as stored:
        arrays = dict(stored)
    key = rng.choice(["counts", "class_names", "sha256", "offsets"])
    kind = rng.randrange(len(ARRAYS) + 3)
    if kind < len(ARRAYS):
        arrays[key] = ARRAYS[kind](arrays[key])
    elif kind == len(ARRAYS):
        del arrays[key]
    np.savez_compressed(path, **arrays)
    if kind == len(ARRAYS) + 1:  # objects, which would be unpickled
        np.savez_compressed(path, **{**arrays, key: np.array([{}], dtype=object)})
    if kind == len(ARRAYS) + 2:  # a header that promises a terabyte
        content = io.BytesIO()
        header = {"descr": "<i8", "fortran_order": False, "shape": (10**6, 10**6)}
        np.lib.format.write_array_header_1_0(content, header)
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(f"{key}.npy", content.getvalue())


def of_safetensors(path: Path, rng: random.Random) -> None:
    with safe_open(path, "pt") as stored:
        shape = json.loads(stored.metadata()["dcfl"])
    metadata = {"dcfl": json.dumps(shape)}
    weights = load_file(path)
    kind = rng.choice(["shape", "shape", "shape", "text", "dtype", "rename", "drop", "header"])
    name = rng.choice(sorted(weights))
    if kind == "shape":
        del shape["checksum"]
        shape = nastier(shape, rng)
        if isinstance(shape, dict):  # as an attacker would, who knows how
            ordered = {name: weights[name] for name in sorted(weights)}
            shape["checksum"] = checksum(ordered, strict_json(shape))
        metadata["dcfl"] = json.dumps(shape)
    elif kind == "text":
        metadata["dcfl"] = rng.choice(["", "[]", "null", "{", "[" * 100_000, '{"settings": 1}'])
    elif kind == "dtype":
        weights[name] = weights[name].to(rng.choice([torch.float64, torch.int8, torch.bool]))
    elif kind == "rename":
        weights[rng.choice(["", "x", "classifier"])] = weights.pop(name)
    elif kind == "drop":
        del weights[name]
    save_file(weights, path, metadata)
    if kind == "header":
        data = path.read_bytes()
        length = rng.choice([0, 1, 2**20, 2**40, 2**64 - 1])
        path.write_bytes(struct.pack("<Q", length) + data[8:])


MUTATE: dict[str, list[Callable[[Path, random.Random], None]]] = {
    "config.toml": [of_bytes, of_toml, of_toml],
    "environment.json": [of_bytes, of_json],
    "summary.json": [of_bytes, of_json, of_json],
    "rounds.jsonl": [of_bytes, of_rows, of_rows, of_rows],
    "clients.jsonl": [of_bytes, of_rows, of_rows],
    "partition.npz": [of_bytes, of_npz, of_npz],
    "trained_on.digests": [of_bytes],
    "model.safetensors": [of_bytes, of_safetensors, of_safetensors],
}


def mutated(folder: Path, rng: random.Random, names: list[str]) -> str:
    name = rng.choice(names)
    change = rng.choice(MUTATE.get(name, [of_bytes]))
    change(folder / name, rng)
    return f"{name} {change.__name__}"


# Readers ------------------------------------------------------------------------------------------


def read_all(folder: Path) -> None:
    """As `dcfl compare` and the report do."""
    run = RecordedRun.open(folder)
    standing = Standing(group_runs([run, run]))
    standing.to_json()
    comparison_table(standing)
    _ = run.clients, run.environment, run.class_names, run.partition_sha256
    read_digests(folder)
    if run.partition_sha256:
        assert run.partition_counts.ndim == 2


def analyse(folder: Path) -> None:
    open_subject(RecordedRun.open(folder))


READERS: dict[str, Callable[[Path], object]] = {
    "read": read_all,
    "load_model": load_model,
    "analyse": analyse,
}


def stray(read: Callable[[Path], object], folder: Path) -> str:
    """What escapes that is not one line; empty if nothing does."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read(folder)
    except DCFLError as error:
        return "several lines" if "\n" in str(error) or len(str(error)) > 2000 else ""
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:100]}"
    return ""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("folders") / "ended"
    run = Run(experiment_of(list(WORDS), out=folder))
    for _ in run.rounds():
        pass
    return folder


@pytest.mark.slow
def test_mutations_of_a_run_folder(ended: Path, tmp_path: Path) -> None:
    rng, found, refused = random.Random(1), [], 0
    for number in range(MUTATIONS):
        folder = tmp_path / "run"
        shutil.copytree(ended, folder)
        what = mutated(folder, rng, list(MUTATE))
        for name, read in READERS.items():
            if problem := stray(read, folder):
                found.append(f"{number} {what}: {name}: {problem}")
        if number % PAGES == 0 and (problem := stray(write_report, folder)):
            found.append(f"{number} {what}: report: {problem}")
        try:
            read_all(folder)
            load_model(folder)
        except Exception:
            refused += 1
        shutil.rmtree(folder)
    assert not found, "\n".join([f"{len(found)} of {MUTATIONS}", *found[:40]])
    assert refused > MUTATIONS / 3  # the fuzzer bites


def test_mutations_of_a_run_that_goes_on(tmp_path: Path) -> None:
    original = tmp_path / "original"
    interrupted(Run(experiment(original, "moon", rounds=6), DATA, flat()), 3)
    rng, found = random.Random(2), []
    names = ["config.toml", "rounds.jsonl", "clients.jsonl"]
    names += [path.relative_to(original).as_posix() for path in original.rglob("*.safetensors")]

    def go_on(folder: Path) -> None:
        for _ in Run.resume(folder, DATA, flat()).rounds():
            pass

    for number in range(RESUMED):
        folder = tmp_path / "run"
        shutil.copytree(original, folder)
        name = rng.choice(names)
        change = rng.choice(MUTATE[name] if name in names[:3] else [of_bytes])
        change(folder / name, rng)
        if problem := stray(go_on, folder):
            found.append(f"{number} {name} {change.__name__}: {problem}")
        shutil.rmtree(folder)
    assert not found, "\n".join([f"{len(found)} of {RESUMED}", *found[:40]])


def test_rows_without_what_a_row_need_not_have_are_gone_on_from(tmp_path: Path) -> None:
    interrupted(Run(experiment(tmp_path / "run", rounds=3), DATA, flat()), 1)
    path = tmp_path / "run" / "rounds.jsonl"
    text = path.read_text()
    for field in fields(RoundRow):
        if field.default is not MISSING:
            text = text.replace(f'"{field.name}"', f'"{field.name.swapcase()}"')  # as many bytes
    path.write_text(text)
    run = Run.resume(tmp_path / "run", DATA, flat())
    assert len(list(run.rounds())) == 2
    assert run.result().summary["rounds"] == 3


# The hash of the weights --------------------------------------------------------------------------


def with_flipped_weight(folder: Path) -> None:
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(bytes(data))


def test_equal_models_are_equal_files(tmp_path: Path) -> None:
    prepared = prepare(experiment(tmp_path / "run"), DATA, flat())
    weights = {name: torch.ones(2) for name in ("b", "a")}
    files = set()
    for number in range(10):
        path = tmp_path / f"{number}.safetensors"
        write_model(path, prepared, weights)
        files.add(path.read_bytes())
    assert len(files) == 1


@pytest.mark.parametrize("known_by", ["both", "checksum"])
def test_a_flipped_bit_of_the_model_is_noticed(ended: Path, tmp_path: Path, known_by: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(ended, folder)
    if known_by == "checksum":
        (folder / "summary.json").unlink()
    load_model(folder)
    with_flipped_weight(folder)
    with pytest.raises(RunFolderError, match=r"model\.safetensors is damaged"):
        load_model(folder)


def test_the_model_of_another_run_is_noticed(ended: Path, tmp_path: Path) -> None:
    shutil.copytree(ended, tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    text = json.dumps({**summary, "weights_sha256": "0" * 64})
    (tmp_path / "run" / "summary.json").write_text(text)
    with pytest.raises(RunFolderError, match="hash of other weights"):
        load_model(tmp_path / "run")


def test_a_model_without_a_checksum_is_not_loaded(ended: Path, tmp_path: Path) -> None:
    shutil.copytree(ended, tmp_path / "run")
    path = tmp_path / "run" / "model.safetensors"
    with safe_open(path, "pt") as stored:
        shape = json.loads(stored.metadata()["dcfl"])
    del shape["checksum"]
    save_file(load_file(path), path, {"dcfl": json.dumps(shape)})
    with pytest.raises(RunFolderError, match="its checksum is another one"):
        load_model(tmp_path / "run")


# JSON ---------------------------------------------------------------------------------------------


def strictly(text: str) -> Any:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


class Diverging(type(flat())):  # type: ignore[misc]
    """Trains well, and is judged with infinite logits."""

    def forward(self, images: torch.Tensor) -> Any:
        output = super().forward(images)
        if self.training:
            return output
        return output._replace(logits=output.logits * float("nan"))


def test_a_loss_that_is_not_a_number_is_null(tmp_path: Path) -> None:
    run = Run(experiment(tmp_path / "run", rounds=2), DATA, Diverging())
    for _ in run.rounds():
        pass
    rows = [strictly(line) for line in (run.folder / "rounds.jsonl").read_text().splitlines()]
    assert [row["loss"] for row in rows] == [None, None]
    for path in run.folder.glob("*.json"):
        strictly(path.read_text())
    write_report(run.folder)


@pytest.mark.parametrize("rows", [[(0, [1.0, 2.0]), (1, [1.0])], [(0, [1.0]), (1, [])], [(1, [])]])
def test_rows_of_own_models_that_do_not_go_together_are_refused(
    ended: Path, tmp_path: Path, rows: list[tuple[int, list[float]]]
) -> None:
    folder = shutil.copytree(ended, tmp_path / "run")
    lines = [json.dumps({"client": client, "on_sites": found}) for client, found in rows]
    (folder / "personal.jsonl").write_text("\n".join([*lines, ""]))
    with pytest.raises(RunFolderError, match=r"personal\.jsonl .* do not go together"):
        write_report(folder)


def test_nan_is_no_json(ended: Path, tmp_path: Path) -> None:
    shutil.copytree(ended, tmp_path / "run")
    path = tmp_path / "run" / "rounds.jsonl"
    path.write_text(re.sub(r'"loss": [0-9.e-]+', '"loss": NaN', path.read_text()))
    with pytest.raises(RunFolderError, match="NaN is no number"):
        _ = RecordedRun.open(tmp_path / "run").rounds


@pytest.mark.parametrize("name", [".lock", "rounds.jsonl", "clients.jsonl"])
def test_resuming_writes_to_nothing_that_a_link_leads_to(name: str, tmp_path: Path) -> None:
    folder = stopped(experiment(tmp_path / "run"))
    precious = tmp_path / "precious"
    (folder / name).rename(precious)
    (folder / name).symlink_to(precious)
    before = precious.read_bytes()
    assert "is a link" in str(refusal(lambda: resume(folder)))
    assert precious.read_bytes() == before


def test_memories_are_not_kept_where_a_link_leads_to(tmp_path: Path) -> None:
    folder = stopped(experiment(tmp_path / "run", "moon"))
    elsewhere = (folder / "memories").rename(tmp_path / "elsewhere")
    before = sorted(elsewhere.iterdir())
    (folder / "memories").symlink_to(elsewhere)
    assert "is a link" in str(refusal(lambda: resume(folder)))
    assert sorted(elsewhere.iterdir()) == before


def test_an_analysis_is_not_written_where_a_link_leads_to(ended: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(ended, tmp_path / "run")
    (tmp_path / "elsewhere").mkdir()
    (folder / "analysis").symlink_to(tmp_path / "elsewhere")
    assert "is a link" in str(refusal(lambda: analysis.analyse([folder], drift=False)))
    assert not [*(tmp_path / "elsewhere").iterdir()]


@pytest.mark.parametrize("name", [".lock", "rounds.jsonl", "clients.jsonl"])
def test_a_pipe_in_a_run_folder_is_refused(name: str, tmp_path: Path) -> None:
    """Whoever reads or writes it would wait for ever."""
    folder = stopped(experiment(tmp_path / "run"))
    (folder / name).unlink()
    os.mkfifo(folder / name)
    assert name in str(refusal(lambda: resume(folder)))


def test_a_pipe_in_place_of_a_checkpoint_is_passed_over(tmp_path: Path) -> None:
    folder = stopped(experiment(tmp_path / "run"), after=2)
    newest = max(folder.glob("checkpoint-0*"))
    newest.unlink()
    os.mkfifo(newest)
    with pytest.warns(UserWarning, match="not a file"):
        assert resume(folder).result().rounds[-1]["round"] == 3
