"""A3: files from outside: each is understood or refused in one line, whatever is in it.

CIFAR's pickles have their 5,000 mutations in tests/data/test_cifar.py, archives that lead out of
their folder are in tests/data/test_sources.py.
"""

from __future__ import annotations

import json
import math
import random
import struct
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dcfl.config import as_tables, experiment_from, to_toml
from dcfl.engines.memories import read_memory
from dcfl.errors import CheckpointError, ConfigError
from dcfl.experiment import Experiment
from dcfl.methods import METHODS
from dcfl.runs.checkpoints import Checkpoint, Checkpoints, SavedProgress, read_checkpoint
from dcfl.server import ServerState
from dcfl.server.optimizers import OPTIMIZERS
from dcfl.system.tensor_files import read_tensors, write_tensors
from dcfl.tensors import checksum
from tests.command_line import Call
from tests.reliability.victims import SLOW, damaged

CONFIGS = 2_000 if SLOW else 600
CHECKPOINTS = 20_000 if SLOW else 2_000
MEMORIES = 500

# Configs ------------------------------------------------------------------------------------------

NASTY_VALUES = [
    "0", "-1", "1", "2", "1e400", "-1e400", "nan", "inf", "-inf", "1e-320", "2147483647",
    "2147483648", "-2147483649", "1" * 30, "1" * 5_000, "0x7fffffffffffffff", "true", "false",
    '""', '"auto"', '"../../etc/passwd"', '"\\u0000"', '"x\\ny"', f'"{"a" * 10_000}"',
    '"__import__(\'os\')"', '"os.system"', "[]", "[1]", "[[1]]", '["a", "b"]', "[nan, 1, 2]",
    "[" * 50 + "]" * 50, "[" * 3_000 + "]" * 3_000, "{}", "{a = 1}", "1979-05-27",
    "1979-05-27T07:32:00Z", "07:32:00", "2020-13-45", "0.0", "1.0", "-0.0", "0.5", "''",
]  # fmt: skip


def base_texts() -> list[str]:
    names = [("method", "name", name) for name in METHODS]
    names += [("server", "optimizer", name) for name in OPTIMIZERS]
    return [
        to_toml(as_tables(experiment_from(None, {section: {key: name}})))
        for section, key, name in names
    ]


def with_another_value(generator: random.Random, text: str) -> str:
    """One to three keys with values that they do not expect."""
    lines = text.splitlines()
    for _ in range(generator.randint(1, 3)):
        place = generator.choice([at for at, line in enumerate(lines) if " = " in line])
        key = lines[place].partition(" = ")[0]
        lines[place] = f"{key} = {generator.choice(NASTY_VALUES)}"
    return "\n".join(lines)


def with_other_keys(generator: random.Random, text: str) -> str:
    """A line that is misspelt, missing, doubled or in the wrong place."""
    lines = text.splitlines()
    place, other = (generator.randrange(len(lines)) for _ in range(2))
    line = lines[place]
    lines[place] = generator.choice(["", line[1:], lines[other], f'"x".{line}'])
    return "\n".join(lines)


def with_other_characters(generator: random.Random, text: str) -> str:
    return damaged(text.encode(), generator).decode(errors="replace")


MUTATIONS = [with_another_value, with_another_value, with_other_keys, with_other_characters]


def fuzzed_configs(number: int, seed: int = 0) -> list[str]:
    generator, texts = random.Random(seed), base_texts()
    return [
        generator.choice(MUTATIONS)(generator, some_tables(generator, generator.choice(texts)))
        for _ in range(number)
    ]


def some_tables(generator: random.Random, text: str) -> str:
    tables = text.split("\n\n")
    return "\n\n".join(table for table in tables if generator.random() < 0.3) or tables[0]


@pytest.mark.filterwarnings("ignore")
def test_fuzzed_configs_are_understood_or_refused_in_one_line(tmp_path: Path) -> None:
    path, refused, strange = tmp_path / "c.toml", 0, []
    for text in fuzzed_configs(CONFIGS):
        path.write_text(text, encoding="utf-8")
        try:
            assert isinstance(experiment_from(path), Experiment)
        except ConfigError as error:
            refused += 1
            if "\n" in str(error).strip():
                strange.append(("several lines", str(error)[:200]))
        except Exception as error:
            strange.append((type(error).__name__, str(error)[:200]))
    assert not strange, (len(strange), strange[:5])
    assert CONFIGS * 0.3 < refused < CONFIGS  # both happen


@pytest.mark.parametrize("value", NASTY_VALUES, ids=lambda value: repr(value[:20]))
def test_no_key_takes_a_value_that_breaks_it(value: str, tmp_path: Path) -> None:
    """Each value at every key there is."""
    path, strange = tmp_path / "c.toml", []
    for section, table in as_tables(Experiment()).items():
        for key in table:
            path.write_text(f"[{section}]\n{key} = {value}\n", encoding="utf-8")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    experiment_from(path)
                except ConfigError:
                    pass
                except Exception as error:
                    strange.append((section, key, f"{type(error).__name__}: {str(error)[:80]}"))
    assert not strange, (len(strange), strange[:5])


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    generator, path = random.Random(0), tmp_path / "c.toml"
    for length in (1, 10, 1_000):
        path.write_bytes(b"\xff" + generator.randbytes(length))
        with pytest.raises(ConfigError):
            experiment_from(path)


def test_fuzzed_configs_through_the_command_line(cli: Call) -> None:
    """`dcfl settings` does all of the reading and none of the training."""
    for text in fuzzed_configs(20, 1):
        Path("c.toml").write_text(text, encoding="utf-8")
        code, out, err = cli("settings", "c.toml")
        errors = [line for line in err.splitlines() if not line.startswith("dcfl: warning: ")]
        assert code in (0, 2), err
        assert len(errors) == (code == 2), err
        assert all(line.startswith("dcfl: ") for line in errors)
        assert (out == "") == (code == 2)


# Checkpoints and memories -------------------------------------------------------------------------


def state() -> ServerState:
    generator = torch.Generator().manual_seed(0)
    return ServerState(
        3,
        {
            "layer.weight": torch.randn(4, 8, generator=generator),
            "layer.bias": torch.randn(4, generator=generator),
            "swap.weight": torch.randn(4, 8, generator=generator),
            "batches": torch.tensor(7),
        },
        {"prototypes": torch.randn(4, 8, generator=generator), "known": torch.ones(4) > 0},
        {"momentum": torch.randn(4, generator=generator)},
    )


PROGRESS = SavedProgress(
    run="0" * 32,
    round=3,
    seconds=1.5,
    memories={"0": 3, "1": 2},
    lengths={"rounds.jsonl": 100, "clients.jsonl": 200},
    begun_with={"training.lr": 0.1, "torch": "2"},
)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    Checkpoints(tmp_path).write(Checkpoint(state(), PROGRESS))
    return tmp_path / "checkpoint-000003.safetensors"


def forged(generator: random.Random, data: bytes) -> bytes:
    """A well-formed file whose header tells something else."""
    length = struct.unpack("<Q", data[:8])[0]
    header, payload = json.loads(data[8 : 8 + length]), data[8 + length :]
    names = [name for name in header if name != "__metadata__"]
    one, other = generator.sample(names, 2)
    kind = generator.randrange(8)
    if kind == 7:
        length = generator.choice([0, 1, length + 1, 2**40, 2**63, 2**64 - 1])
        return struct.pack("<Q", length) + data[8:]
    if kind == 0:
        header[one], header[other] = header[other], header[one]
    elif kind == 1:
        header[generator.choice([one, "x", "weights/x"])] = header.pop(one)
    elif kind == 2:
        header[one]["shape"] = generator.choice(
            [[1, *header[one]["shape"]], [], [-1], [2**62], [0]]
        )
    elif kind == 3:
        header[one]["dtype"] = generator.choice(["I32", "F16", "BOOL", "F64", "U8", "F8_E4M3", "Q"])
    elif kind == 4:
        header[one]["data_offsets"] = header[other]["data_offsets"]
    elif kind == 5:
        metadata = header["__metadata__"]
        key = generator.choice(list(metadata))
        metadata[key] = generator.choice(
            ["", "null", "[]", "{}", "[[]]", metadata[key][:-1], metadata[key] + " ", "[" * 9_999,
             json.dumps(names), json.dumps(names[::-1]), "0" * 64]
        )  # fmt: skip
    else:
        del header[generator.choice(["__metadata__", one])]
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + payload


def bits_of(tensors: dict[str, torch.Tensor]) -> list[tuple[str, str, list[int], bytes]]:
    return [
        (
            name,
            str(each.dtype),
            list(each.shape),
            each.reshape(-1).view(torch.uint8).numpy().tobytes(),
        )
        for name, each in tensors.items()
    ]


def survive_fuzzing(path: Path, number: int, read: Callable[[Path], Any], known: Any) -> None:
    generator, original = random.Random(number), path.read_bytes()
    header = 8 + struct.unpack("<Q", original[:8])[0]  # where a reader believes things
    assert read(path) == known
    target, refused, strange = path.with_name("fuzzed.safetensors"), 0, []
    for _ in range(number):
        data = (
            forged(generator, original)
            if generator.random() < 0.4
            else damaged(original, generator, generator.choice([header, 0]))
        )
        target.write_bytes(data)
        try:
            found = read(target)
            if found != known:
                strange.append(("accepted a changed payload", data))
        except CheckpointError as error:
            refused += 1
            if "\n" in str(error) or not str(error).startswith(str(target)):
                strange.append((str(error)[:200], data))
        except BaseException as error:
            strange.append((f"{type(error).__name__}: {str(error)[:200]}", data))
        target.unlink()
    assert not strange, (len(strange), [what for what, _ in strange[:5]])
    assert refused > 0.8 * number


def test_fuzzed_checkpoints_are_refused_or_unchanged(checkpoint: Path) -> None:
    def read(path: Path) -> Any:
        found = read_checkpoint(path)
        tensors = (found.state.weights, found.state.shared, found.state.slots)
        return [bits_of(dict(each)) for each in tensors], found.state.round, found.progress

    tensors = (state().weights, state().shared, state().slots)
    known = [bits_of(dict(each)) for each in tensors], 3, PROGRESS
    survive_fuzzing(checkpoint, CHECKPOINTS, read, known)


def test_fuzzed_memories_are_refused_or_unchanged(tmp_path: Path) -> None:
    memory = {"weight": torch.randn(3, 4), "bias": torch.randn(4)}
    write_tensors(tmp_path / "m.safetensors", memory, "client 1, round 2")

    def read(path: Path) -> Any:
        return bits_of(read_memory(path, "client 1, round 2"))

    survive_fuzzing(tmp_path / "m.safetensors", MEMORIES, read, bits_of(memory))


def test_every_single_bit_flip_of_a_small_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    memory = {"w": torch.tensor([1.5, -2.0])}
    write_tensors(path, memory, "x")
    original, accepted = path.read_bytes(), []
    for bit in range(0, 8 * len(original), 1 if SLOW else 3):
        changed = bytearray(original)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        try:
            found, text = read_tensors(path)
        except CheckpointError:
            continue
        if bits_of(found) != bits_of(memory) or text != "x":
            accepted.append(bit)
    assert not accepted


OTHER_FACTS: list[dict[str, object]] = [
    {"round": "three"}, {"memories": {"x": "y"}}, {"lengths": 1}, {"begun_with": []},
    {"best": "high"}, {"module": "os.system"}, {"round": -1}, {"best": -1}, {"again": 10**30},
    {"memories": {"abc": 1}}, {"memories": {"²": 1}}, {"memories": {"9" * 5000: 1}},
    {"memories": {"-1": 1}}, {"memories": {"1": -1}}, {"lengths": {"rounds.jsonl": -1}},
    {"seconds": -1.0}, {"seconds": 1e308}, {"seconds": math.inf}, {"run": "x" * 10**6},
]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        *("[]", "null", "1", "{}", '"x"', "[" * 100_000),
        *(json.dumps({**vars(PROGRESS), **facts}) for facts in OTHER_FACTS),
    ],
    ids=lambda text: text[-20:],
)
def test_a_text_that_is_no_checkpoint_is_refused(text: str, tmp_path: Path) -> None:
    """With a checksum that is right: another program's, or another version's."""
    write_tensors(tmp_path / "checkpoint-000003.safetensors", {"weights/w": torch.ones(2)}, text)
    with pytest.raises(CheckpointError) as refused:
        Checkpoints(tmp_path).recover_newest()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["w", "other/w", "", "/"])
def test_tensors_that_belong_nowhere_are_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint-000003.safetensors"
    write_tensors(path, {name: torch.ones(2)}, json.dumps(vars(PROGRESS)))
    with pytest.raises(CheckpointError):
        read_checkpoint(path)


def test_a_file_of_someone_elses_is_refused(tmp_path: Path) -> None:
    save_file({"w": torch.ones(2)}, tmp_path / "other.safetensors")
    assert load_file(tmp_path / "other.safetensors").keys() == {"w"}
    for path in (tmp_path / "other.safetensors", tmp_path / "none.safetensors", tmp_path):
        with pytest.raises(CheckpointError, match=str(path)):
            read_tensors(path)
    assert checksum({"w": torch.ones(2)}, "a") != checksum({"w": torch.ones(2)}, "b")


def test_a_memory_of_another_client_or_round_is_refused(tmp_path: Path) -> None:
    write_tensors(tmp_path / "m", {"w": torch.ones(2)}, "client 1, round 2")
    for owner in ("client 1, round 3", "client 2, round 2"):
        with pytest.raises(CheckpointError, match="belongs to client 1, round 2"):
            read_memory(tmp_path / "m", owner)


def test_the_newest_checkpoint_is_that_of_the_last_round_beyond_a_million(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path)
    for round in range(999_998, 1_000_002):
        kept.write(Checkpoint(replace(state(), round=round), replace(PROGRESS, round=round)))
    newest = Checkpoints(tmp_path).recover_newest()
    assert newest is not None
    assert newest[0].progress.round == 1_000_001
    kept.drop_after(1_000_000)
    assert [path.name for path in kept.paths()] == ["checkpoint-1000000.safetensors"]
