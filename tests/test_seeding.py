"""Every draw has a stream of its own, even where all seeds are equal."""

import ast
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import dcfl
from dcfl.data import DataSettings, load_dataset
from dcfl.seeding import derived_seed

PACKAGE = Path(dcfl.__file__).parent
SOURCES = {"default_rng", "derived_seed", "generator_for", "manual_seed", "Draws"}

# Where random numbers come from in a run and in its analysis: the call as it stands in the file,
# and the entropy behind it, for numpy as it is given and for (seed, round, client, purpose) as the
# seed that is derived from them. Rounds are counted from 1.
SCHEDULE = (
    "federation.py",
    "np.random.default_rng(secrets.randbits(256) if sampling.secret else [seed, round])",
)
SPLIT = ("data/splits/partition.py", "np.random.default_rng(seed)")
DERIVED = {
    ("models/__init__.py", "derived_seed(seed, 0, 0, 'initialisation')"): "initialisation",
    ("data/datasets.py", "generator_for(seed, 0, 0, 'holdout')"): "holdout",
    ("data/datasets.py", "generator_for(seed, 0, 0, 'training sample')"): "training sample",
    ("data/datasets.py", "generator_for(seed, 0, 0, 'test sample')"): "test sample",
    ("engines/attacks.py", "generator_for(seed, 0, 0, 'attackers')"): "attackers",
    # Which test images are looked at closely.
    ("analysis/similarity.py", "generator_for(seed, 0, 0, 'order')"): "order",
}
PER_VISIT = {
    ("data/client_data.py", "generator_for(seed, round, client, 'order')"): "order",
    ("data/client_data.py", "generator_for(seed, round, client, 'augmentation')"): "augmentation",
    ("data/client_data.py", "generator_for(seed, round, client, 'second view')"): "second view",
    ("local_training.py", "derived_seed(seed, broadcast.round, client_id, 'model')"): "model",
    ("engines/attacks.py", "derived_seed(seed, round, client, 'faults')"): "faults",
    ("engines/attacks.py", "generator_for(self.seed, round, client, 'attack')"): "attack",
    ("clock/events.py", "derived_seed(self.seed, number, client, 'drop-out')"): "drop-out",
    ("server/compression.py", "generator_for(*draw)"): "compression",  # and once a round: broadcast
}
PER_CLIENT = {
    ("clock/devices.py", "derived_seed(seed, 0, client, 'device')"): "device",
    ("clock/devices.py", "derived_seed(seed, 0, client, 'time zone')"): "time zone",
}
# Of the schedule, when a clock asks again or in two steps: the third number tells which.
SELECTION = {
    ("clock/selection.py", "np.random.default_rng([*asking.key, 1])"),
    ("clock/selection.py", "np.random.default_rng([*self.key, *([stream] if stream else [])])"),
}
# Of a derived seed that is listed above, of keys that name their purpose, of programs that train
# nothing, and of toys.
NO_STREAMS_OF_THEIR_OWN = {
    ("seeding.py", "torch.Generator().manual_seed(derived_seed(seed, round, client, purpose))"),
    ("seeding.py", "derived_seed(seed, round, client, purpose)"),
    ("models/__init__.py", "torch.manual_seed(derived_seed(seed, 0, 0, 'initialisation'))"),
    ("local_training.py", "torch.default_generator.manual_seed(seed)"),
    ("local_training.py", "torch.cuda.default_generators[gpu].manual_seed(seed)"),
    (
        "engines/attacks.py",
        "np.random.default_rng(derived_seed(seed, round, client, 'faults'))",
    ),
    ("privacy.py", "Draws(key)"),
    (
        "central_noise.py",
        "Draws(None if self.settings.secret else f'{self.seed}/{round}/server/privacy')",
    ),
    ("central_noise.py", "Draws(None if self.settings.secret else seeded)"),
    ("federation.py", "np.random.default_rng([seed, 0])"),  # whose turn it is; rounds begin at 1
    ("clock/devices.py", "np.random.default_rng(derived_seed(seed, 0, client, 'device'))"),
    (
        "clock/events.py",
        "np.random.default_rng(derived_seed(self.seed, number, client, 'drop-out'))",
    ),
    ("server/compression.py", "derived_seed(*draw)"),
    ("server/compression.py", "np.random.default_rng(derived_seed(*draw))"),
    ("methods/personal/ifca.py", "torch.Generator().manual_seed(cluster)"),  # the same in all runs
    ("paper/theory.py", "np.random.default_rng([seed, sphere.dimension, negatives])"),
    ("testing/toys.py", "torch.Generator().manual_seed(seed)"),
    ("runs/identity.py", "torch.Generator().manual_seed(0)"),
    ("runs/identity.py", "np.random.default_rng([0, 1])"),
    ("testing/toys.py", "torch.manual_seed(seed)"),
    ("testing/properties.py", "torch.Generator().manual_seed(1)"),
    ("testing/model_properties.py", "generator.manual_seed(0)"),
    ("testing/model_properties.py", "torch.Generator().manual_seed(seed)"),
    ("testing/model_properties.py", "torch.manual_seed(0)"),
    ("methods/zoo/ccvr.py", "torch.Generator().manual_seed(seed)"),  # the server's, by round
    ("methods/zoo/fedgen.py", "torch.Generator().manual_seed(step.round)"),  # so is this
    ("methods/zoo/fedgen.py", "torch.default_generator.manual_seed(0)"),  # the same in all runs
    ("methods/zoo/fedgen.py", "drawn.manual_seed(seed + client.num_steps)"),  # of the client's own
    ("methods/zoo/fedetf.py", "torch.Generator().manual_seed(0)"),  # a frame, the same in all runs
    # Attacks on a finished run.
    ("analysis/leaks.py", "torch.Generator().manual_seed(subject.experiment.federation.seed)"),
    ("analysis/leaks.py", "torch.Generator().manual_seed(seed)"),
    ("analysis/leaks.py", "generator_for(seed, 0, 0, 'shadow')"),
    ("analysis/leaks.py", "derived_seed(experiment.federation.seed, 0, number + 1, 'shadow')"),
    ("trained/evaluate.py", "np.random.default_rng(0)"),  # resampling of answers
    ("trained/export.py", "torch.Generator().manual_seed(0)"),
}


def calls() -> set[tuple[str, str]]:
    """Whatever begins a stream in the package."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = node.func
                last = called.attr if isinstance(called, ast.Attribute) else ast.unparse(called)
                if last in SOURCES:
                    found.add((name, ast.unparse(node)))
    return found


def test_every_stream_is_listed() -> None:
    derived = DERIVED.keys() | PER_VISIT.keys() | PER_CLIENT.keys()
    listed = {SCHEDULE, SPLIT} | SELECTION | derived | NO_STREAMS_OF_THEIR_OWN
    assert calls() == listed


@pytest.mark.parametrize("seed", [0, 1, 7, 2**32, 2**40 + 3])
def test_no_two_of_them_are_the_same(seed: int) -> None:
    rounds, clients = range(1, 8), range(5)
    again = [[], [1], [2], [3], [3, 1], [3, 2]]
    asked = [[seed, round, *more] for round in rounds for more in again]
    entropies: list[int | list[int]] = [seed, *asked]
    for purposes in DERIVED.values():
        entropies += [derived_seed(seed, 0, 0, each) for each in purposes.split(", ")]  # type: ignore[arg-type]
    entropies += [
        derived_seed(seed, round, client, purpose)  # type: ignore[arg-type]
        for purpose in PER_VISIT.values()
        for round in rounds
        for client in clients
    ]
    entropies += [
        derived_seed(seed, 0, client, purpose)  # type: ignore[arg-type]
        for purpose in PER_CLIENT.values()
        for client in clients
    ]
    entropies += [derived_seed(seed, round, 0, "broadcast") for round in rounds]
    # What numpy makes of the entropy: an int and a list that begins with it may be the same.
    states = Counter(
        tuple(np.random.SeedSequence(entropy).generate_state(4)) for entropy in entropies
    )
    assert len(states) == len(entropies) == 1 + 6 * 7 + 6 + 8 * 35 + 2 * 5 + 7


@pytest.mark.parametrize("seed", [0, 3])
def test_what_is_held_out_is_not_drawn_by_the_schedule_of_a_round(seed: int) -> None:
    whole = load_dataset(DataSettings()).train
    held = load_dataset(DataSettings(holdout=0.25, seed=seed)).test
    for round in range(1, 4):
        shuffled = np.random.default_rng([seed, round]).permutation(len(whole))
        rows = np.sort(shuffled[: len(held)])
        assert not np.array_equal(whole.pixels[rows].numpy(), held.pixels.numpy())
