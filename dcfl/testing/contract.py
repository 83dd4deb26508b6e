"""Does a method keep its promises? The properties behind `dcfl check` and the contract tests.

Published federated code is full of terms that are silently zero, teachers that move with the
student and statistics that leak. Each property rules out one such mistake, on a small federation of
noisy squares.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import torch
from safetensors.torch import load, save
from torch import Tensor

from dcfl.client import Batch, Client, LocalTraining, evaluating
from dcfl.data import Augmentation, ClientData, Images
from dcfl.data.augment import Preparation
from dcfl.errors import ConfigError, ProtocolError
from dcfl.local_training import train_client
from dcfl.messages import Broadcast, ClientUpdate, Tensors
from dcfl.methods import METHODS, Method
from dcfl.models import CNN, FeatureModel
from dcfl.models.layers import Norm
from dcfl.privacy import PrivacySettings, Protection, check_covered
from dcfl.server import Server, ServerState
from dcfl.server.validation import Schema, check_update
from dcfl.system.processes import Terminated
from dcfl.tensors import as_rows, checksum, from_rows, not_finite, sha256, snapshot

CLASSES = 4
TRAINING = LocalTraining(epochs=2, batch_size=8, lr=0.05)
MIXED = [0, 0, 0, 1, 1, 2, 2, 3, 0, 1, 2, 3] * 2
STEPS = (1e-5, 1e-6, 1e-7, 1e-8)  # of the finite differences
HOOKS = ("objective", "gradient", "upload", "remember", "merge")


class Broken(Exception):
    """A property that does not hold; the message says how that was noticed."""


@dataclass(frozen=True)
class Verdict:
    property: str
    holds: bool
    detail: str = ""


def check_method(method: type[Method], norm: Norm = "batch") -> list[Verdict]:
    """Check every property of a method with its default fields."""
    return [_verdict(name, check, method, norm) for name, check in PROPERTIES.items()]


Check = Callable[[type[Method], Norm], str | None]  # returns a remark, or raises Broken


def _verdict(name: str, check: Check, method: type[Method], norm: Norm) -> Verdict:
    try:
        remark = check(method, norm)
    except Broken as broken:
        return Verdict(name, False, str(broken))
    except Terminated:
        raise
    except (Exception, SystemExit) as error:  # a method that raises or exits breaks its promise
        return Verdict(name, False, f"{type(error).__name__}: {error}")
    return Verdict(name, True, remark or "")


def overridden_hooks(method: type[Method]) -> list[str]:
    return [hook for hook in HOOKS if method.overrides(hook)]


# A small federation


def toy_images(labels: Sequence[int], seed: int = 0) -> Images:
    """8x8 noise with a bright quarter that tells the class."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 120, (len(labels), 8, 8, 1), generator=generator, dtype=torch.uint8)
    for pixel, label in zip(pixels, labels, strict=True):
        row, column = 4 * (label % 2), 4 * (label // 2 % 2)
        pixel[row : row + 4, column : column + 4] += 100
    return Images(pixels, torch.tensor(labels, dtype=torch.int64))


def toy_client(labels: Sequence[int], augmentation: Augmentation | None = None) -> ClientData:
    preparation = Preparation((0.3,), (0.3,), augmentation or Augmentation(crop=1))
    return ClientData(toy_images(labels), CLASSES, preparation)


def toy_model(norm: Norm = "batch", seed: int = 0) -> FeatureModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return CNN(channels=1, size=8, classes=CLASSES, norm=norm)


class Visit(NamedTuple):
    """One client's round: its reply and its new memory."""

    update: ClientUpdate
    memory: Tensors


class Rounds(NamedTuple):
    """Two rounds of all clients. From the second on, prototypes and memories are in play."""

    first: list[Visit]
    second: list[Visit]
    weights: Tensors  # the plain mean in between
    shared: Tensors  # what the method shared in the second round

    @property
    def sent(self) -> Broadcast:
        """What the clients received in the second round."""
        return Broadcast(2, self.weights, self.shared)


def visit(
    method: Method,
    data: ClientData,
    *,
    norm: Norm = "batch",
    sent: Broadcast | None = None,
    memory: Tensors | None = None,
    training: LocalTraining = TRAINING,
    client: int = 0,
) -> Visit:
    """One client's round: the first one, from the same initial weights, unless `sent` is given."""
    model = toy_model(norm)
    sent = sent or Broadcast(1, snapshot(model), {})
    return Visit(*train_client(method, model, data, sent, memory or {}, training, client, seed=0))


def two_rounds(method: Method, norm: Norm, *labels: Sequence[int]) -> Rounds:
    clients = [toy_client(client_labels) for client_labels in labels]
    first = [visit(method, data, norm=norm, client=i) for i, data in enumerate(clients)]
    updates = [update for update, _ in first]
    shared = method.merge({}, [update.upload for update in updates], len(clients))
    weights = _mean_of(method, norm, updates).weights
    sent = Broadcast(2, weights, shared)
    second = [
        visit(method, data, norm=norm, client=i, sent=sent, memory=memory)
        for i, (data, (_, memory)) in enumerate(zip(clients, first, strict=True))
    ]
    return Rounds(first, second, weights, shared)


def _mean_of(method: Method, norm: Norm, updates: list[ClientUpdate]) -> ServerState:
    model = toy_model(norm)
    names = frozenset(name for name, _ in model.named_parameters())
    server = Server(method, len(updates), names, TRAINING)
    state = ServerState(0, snapshot(model), {}, {})
    return server.aggregate(state, server.broadcast(state), updates)[0]


def _hashes(method: Method, norm: Norm) -> list[str]:
    rounds = two_rounds(method, norm, MIXED, MIXED[::-1][:17])
    return [sha256(update.weights) for update, _ in rounds.second]


# The properties


def repeatable(method: type[Method], norm: Norm) -> None:
    if _hashes(method(), norm) != _hashes(method(), norm):
        raise Broken("two equal rounds gave different weights: something random is not seeded")


def equals_fedavg_at_its_neutral_value(method: type[Method], norm: Norm) -> None:
    neutral = dict(method.neutral)
    if not neutral and "mu" in [field.name for field in fields(method)]:
        neutral = {"mu": 0.0}
    if not neutral and overridden_hooks(method):
        raise Broken("say at which values of its fields it is FedAvg, as in neutral = {'mu': 0.0}")
    if _hashes(replace(method(), **neutral), norm) != _hashes(METHODS["fedavg"](), norm):
        values = ", ".join(f"{key} = {value}" for key, value in neutral.items())
        raise Broken(f"with {values} its weights are not FedAvg's")


def differs_from_fedavg_otherwise(method: type[Method], norm: Norm) -> None:
    if not overridden_hooks(method):
        return  # it is FedAvg
    if _hashes(method(), norm) == _hashes(METHODS["fedavg"](), norm):
        raise Broken("with its default fields every bit is FedAvg's: its term is zero")


def gradient_agrees_with_finite_differences(method: type[Method], norm: Norm) -> str | None:
    """The slope of the objective along random directions, in float64, away from `received`."""
    client, batch = _client_in_float64(method(), norm)
    objective = method().objective(client)
    parameters = [parameter for _, parameter in client.trainable()]
    gradients = torch.autograd.grad(objective(batch), parameters)
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        directions = [
            torch.randn(p.shape, generator=generator, dtype=p.dtype) / p.numel() ** 0.5
            for p in parameters
        ]
        claimed = float(sum((g * d).sum() for g, d in zip(gradients, directions, strict=True)))
        # A kink of a ReLU may lie within a step: then a shorter one tells.
        slopes = [_slope(lambda: objective(batch), parameters, directions, s) for s in STEPS]
        measured = min(slopes, key=lambda slope: abs(slope - claimed))
        if abs(claimed - measured) > 1e-6 + 1e-4 * abs(measured):
            raise Broken(f"a slope of {measured:.6g} was measured, its gradient says {claimed:.6g}")
    if "gradient" in overridden_hooks(method):
        return "of its objective; what its own `gradient` makes of it is for its own test"
    return None


def _slope(
    loss: Callable[[], Tensor],
    parameters: Sequence[Tensor],
    directions: Sequence[Tensor],
    step: float,
) -> float:
    @torch.no_grad()
    def moved(by: float) -> float:
        for parameter, direction in zip(parameters, directions, strict=True):
            parameter.add_(direction, alpha=by)
        return float(loss())

    ahead, behind = moved(step), moved(-2 * step)
    moved(step)
    return (ahead - behind) / (2 * step)


def _client_in_float64(method: Method, norm: Norm) -> tuple[Client, Batch]:
    """A client in its second round that has already moved a little, and a batch."""
    rounds = two_rounds(method, norm, MIXED, MIXED[::-1][:17])

    def double(tensors: Tensors) -> dict[str, Tensor]:
        return {k: t.double() if t.is_floating_point() else t for k, t in tensors.items()}

    model = toy_model(norm).double().train()
    model.load_state_dict(double(rounds.second[1].update.weights))
    data = toy_client(MIXED)
    second_view = method.second_view
    batch = next(data.training_batches(1, 12, 0, 2, 0, second_view=second_view))
    view = batch.second_view.double() if batch.second_view is not None else None
    client = Client(
        id=0,
        round=2,
        model=model,
        received=double(rounds.weights),
        shared=double(rounds.shared),
        memory=double(rounds.first[0].memory),
        data=data,
        training=TRAINING,
    )
    return client, Batch(batch.images.double(), batch.labels, view)


def statistics_move_with_training_and_are_averaged(method: type[Method], norm: Norm) -> None:
    rounds = two_rounds(method(), norm, MIXED, MIXED[::-1][:17])
    updates = [update for update, _ in rounds.first]
    for update in updates:
        for name, value in update.weights.items():
            if name.endswith("num_batches_tracked") and int(value) != update.num_steps:
                raise Broken(f"{name} counted {int(value)} batches in {update.num_steps} steps")
    averaged = _mean_of(method(), norm, updates).weights
    for name in averaged:
        if name.endswith(("running_mean", "running_var")):
            both = torch.stack([update.weights[name] for update in updates])
            if not torch.allclose(averaged[name], both.mean(dim=0), atol=1e-6):
                raise Broken(f"{name} is not the clients' mean")


def _stays_finite(*labels: Sequence[int]) -> Check:
    def check(method: type[Method], norm: Norm) -> None:
        rounds = two_rounds(method(), norm, *labels)
        for update, memory in (*rounds.first, *rounds.second):
            for tensors in (update.weights, update.upload, memory, rounds.shared):
                for name, tensor in tensors.items():
                    if tensor.is_floating_point() and not tensor.isfinite().all():
                        raise Broken(f"{name} is not finite")

    return check


def works_in_the_first_round(method: type[Method], norm: Norm) -> None:
    """Nothing shared, nothing remembered."""
    update, _ = visit(method(), toy_client(MIXED), norm=norm)
    if update.num_steps == 0:
        raise Broken("no step was taken")


def leaves_what_it_was_given_untouched(method: type[Method], norm: Norm) -> None:
    rounds = two_rounds(method(), norm, MIXED)
    given = {
        "received": dict(rounds.weights),
        "shared": dict(rounds.shared),
        "memory": dict(rounds.first[0].memory),
    }
    data = toy_client(MIXED)
    given["data"] = {"pixels": data.own.pixels, "labels": data.own.labels}
    before = copy.deepcopy(given)
    sent = Broadcast(2, given["received"], given["shared"])
    visit(method(), data, norm=norm, sent=sent, memory=given["memory"])
    method().merge(given["shared"], [rounds.second[0].update.upload], 1)
    for name, tensors in given.items():
        if sha256(tensors) != sha256(before[name]):
            raise Broken(f"`{name}` was changed")


def merge_hears_every_client(method: type[Method], norm: Norm) -> None:
    uploads = [visit.update.upload for visit in two_rounds(method(), norm, MIXED, [0, 1, 2]).first]
    if not any(uploads):
        return
    for left_out in (0, 1):
        if sha256(method().merge({}, uploads, 2)) == sha256(
            method().merge({}, [uploads[left_out]], 2)
        ):
            raise Broken("what is shared does not depend on every client's upload")


def replies_are_accepted_by_the_server(method: type[Method], norm: Norm) -> str | None:
    """As `upload_like` and `check_upload` demand, in the first round and later, forged or not."""
    rounds, example = two_rounds(method(), norm, MIXED, [1] * 9), _upload_example(method(), norm)
    for update, _ in (*rounds.first, *rounds.second):
        _require_accepted(method(), norm, update)
        if method.overrides("flip_upload"):
            forged = method().flip_upload(update.upload, 10.0)
            _require_accepted(method(), norm, replace(update, upload=forged))
    if example is None:
        return "its uploads are not checked: define `upload_like`"
    return None


def _upload_example(method: Method, norm: Norm) -> Tensors | None:
    model = toy_model(norm)
    with torch.no_grad(), evaluating(model):
        width = model(torch.zeros(2, 1, 8, 8)).embedding.shape[1]
    return method.upload_like(dict(model.named_parameters()), CLASSES, width)


def _require_accepted(method: Method, norm: Norm, update: ClientUpdate) -> None:
    schema = Schema(method, TRAINING, _upload_example(method, norm))
    try:
        check_update(update, Broadcast(1, snapshot(toy_model(norm)), {}), schema)
    except ProtocolError as error:
        raise Broken(f"the server would reject its replies: {error}") from error


def what_it_sends_and_keeps_survives_the_way(method: type[Method], norm: Norm) -> None:
    """Through the format that messages, memories and checkpoints have."""
    rounds = two_rounds(method(), norm, MIXED, MIXED[::-1][:17])
    for update, memory in rounds.second:
        for tensors in (update.weights, update.upload, memory, rounds.shared):
            back = from_rows(load(save(as_rows(tensors))))
            if checksum({name: back[name] for name in tensors}) != checksum(tensors):
                raise Broken("a tensor came back changed")


def goes_on_when_its_reply_was_not_used(method: type[Method], norm: Norm) -> None:
    """A client then finds what others have shared since, and no memory of its own."""
    rounds = two_rounds(method(), norm, MIXED, MIXED[::-1][:17])
    update, memory = visit(method(), toy_client(MIXED), norm=norm, sent=rounds.sent)
    for tensors in (update.weights, update.upload, memory):
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and not tensor.isfinite().all():
                raise Broken(f"{name} is not finite")


def withstands_forged_uploads(method: type[Method], norm: Norm) -> str | None:
    """Where the server's rule for weights is robust: two of seven send minus ten times what they
    should, and what is shared stays within twice the honest clients' own span."""
    strict = method().fitted(robust=True)
    uploads = [visit(strict, toy_client(MIXED[k:]), norm=norm).update.upload for k in range(7)]
    forged = [{name: -10 * tensor for name, tensor in upload.items()} for upload in uploads[:2]]
    alone = [strict.merge({}, [upload] * 7, 7) for upload in uploads]
    told = strict.merge({}, [*forged, *uploads[2:]], 7)
    for name, tensor in told.items():
        honest = torch.stack([shared[name].double() for shared in alone])
        low, high = honest.aminmax(dim=0)
        slack = 0.5 * (high - low) + 1e-6
        if ((tensor < low - slack) | (tensor > high + slack)).any():
            return "no: two of seven steer what it shares, whatever server.aggregation is"
    return None


def uploads_stay_within_their_sensitivity(method: type[Method], norm: Norm) -> str | None:
    """What [privacy] relies on, for clients with any data, however long their uploads would be."""
    sensitivity = method().upload_sensitivity()
    if sensitivity is None:
        return "[privacy] refuses it: define `upload_sensitivity`"
    if not sensitivity:
        return None
    _require_private(method())
    clipped = [method().clip_upload(upload) for upload in _uploads_of_neighbours(method(), norm)]
    for name, furthest in sensitivity.items():
        rows = torch.stack([upload[name].flatten() for upload in clipped])
        apart = float(torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").max())
        if not apart <= furthest * (1 + 1e-9):  # NaN is not either
            raise Broken(
                f"after clip_upload, {name} of two clients can be {apart:.4g} apart in L2, and "
                f"upload_sensitivity says {furthest:.4g}"
            )
    return None


def _uploads_of_neighbours(method: Method, norm: Norm) -> Iterator[dict[str, Tensor]]:
    """Of clients with different labels and pictures, and what others might send: from nothing to
    far too much, and with nothing in common. Numbers keep their signs if all are alike."""
    for seed, labels in enumerate((MIXED, [1] * 9, [3] * 40, [0, 2])):
        images = toy_images(labels, seed)
        for pixels in (images.pixels, torch.full_like(images.pixels, 255)):
            data = replace(toy_client(labels), own=Images(pixels, images.labels))
            upload = visit(method, data, norm=norm).update.upload
            mixed_signs = any((t < 0).any() and (t > 0).any() for t in upload.values())
            for factor in (0.0, 1e-3, 1.0, 1e9, *([-1.0, -1e9] if mixed_signs else [])):
                scaled = {name: tensor.double() * factor for name, tensor in upload.items()}
                yield scaled
                for first in (0, 1):
                    yield {name: _every_second(tensor, first) for name, tensor in scaled.items()}


def _every_second(tensor: Tensor, first: int) -> Tensor:
    """Zero in the places between."""
    flat = tensor.flatten()
    return flat.where(torch.arange(len(flat)) % 2 == first, 0.0).view_as(tensor)


def _require_private(method: Method) -> None:
    """With noise the server accepts its replies, and `merge` makes sense of them."""
    model = toy_model("group")  # which [privacy] covers
    settings, example = PrivacySettings(clip=1.0, noise=1.0), _upload_example(method, "group")
    try:
        check_covered(settings, method, "uniform", model, example)
    except ConfigError as error:
        raise Broken(str(error)) from error
    trainable = frozenset(name for name, _ in model.named_parameters())
    protection = Protection(settings, method, trainable, example or {}, seed=0)
    sent = Broadcast(1, snapshot(model), {})
    uploads = []
    for labels in (MIXED, [1] * 9):
        update = protection.protect(visit(method, toy_client(labels), norm="group").update, sent)
        _require_accepted(method, "group", update)
        uploads.append(update.upload)
    if (name := not_finite(method.merge({}, uploads, 2))) is not None:
        raise Broken(f"with noise on the uploads, {name} of what it shares is not finite")


def merging_nothing_changes_nothing(method: type[Method], norm: Norm) -> None:
    shared = two_rounds(method(), norm, MIXED).shared
    if sha256(method().merge(shared, [], 5)) != sha256(shared):
        raise Broken("merging no upload changed what is shared")


PROPERTIES: dict[str, Check] = {
    "works in the first round": works_in_the_first_round,
    "gives the same bits again": repeatable,
    "equals FedAvg at its neutral value": equals_fedavg_at_its_neutral_value,
    "differs from FedAvg otherwise": differs_from_fedavg_otherwise,
    "gradient agrees with finite differences": gradient_agrees_with_finite_differences,
    "BatchNorm moves with training alone and is averaged": (
        statistics_move_with_training_and_are_averaged
    ),
    "survives a client with one class": _stays_finite([2] * 20),
    "survives a batch of two without positives": _stays_finite([0, 1]),
    "survives a batch of two without negatives": _stays_finite([1, 1]),
    "survives a class that nobody has": _stays_finite([0, 1, 3] * 7, [0, 0, 1]),
    "survives a last batch of one": _stays_finite([0, 1, 2, 3, 0, 1, 2, 3, 1]),
    "leaves received, shared, memory and data untouched": leaves_what_it_was_given_untouched,
    "hears every client's upload": merge_hears_every_client,
    "merges no upload into no change": merging_nothing_changes_nothing,
    "goes on when its reply was not used": goes_on_when_its_reply_was_not_used,
    "withstands forged uploads under a robust rule": withstands_forged_uploads,
    "sends what the server expects": replies_are_accepted_by_the_server,
    "keeps its upload within the sensitivity it claims": uploads_stay_within_their_sensitivity,
    "sends and keeps what survives the way": what_it_sends_and_keeps_survives_the_way,
}
