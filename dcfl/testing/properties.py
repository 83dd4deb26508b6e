"""The properties that every method has, one function each.

Published federated code is full of terms that are silently zero, teachers that move with the
student and statistics that leak. Each property looks for one such mistake, on a small federation.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from types import CodeType, FunctionType

import torch
from safetensors.torch import load, save
from torch import Tensor

from dcfl.client import Batch, Client, evaluating
from dcfl.data import Images
from dcfl.errors import ConfigError, ProtocolError
from dcfl.messages import Broadcast, ClientUpdate, Tensors
from dcfl.methods import METHODS, Method, Objective
from dcfl.methods.method import OnLevels, addressed, public_functions
from dcfl.models import FeatureModel
from dcfl.models.networks import Norm
from dcfl.models.parts import (
    freeze,
    frozen_tensors,
    personal_and_rest,
    personal_tensors,
    personalise,
)
from dcfl.privacy import PrivacySettings, Protection, check_covered, in_floats
from dcfl.server import ServerSettings, ServerState
from dcfl.server.validation import Schema, check_update
from dcfl.tensors import as_rows, checksum, copies, from_rows, not_finite, sha256, snapshot
from dcfl.testing import toys
from dcfl.testing.toys import (
    CLASSES,
    MIXED,
    TRAINING,
    Broken,
    NotOffered,
    Rounds,
    averaged,
    fresh_rounds,
    partial_rounds,
    toy_client,
    toy_images,
    toy_model,
    toy_server,
    two_rounds,
    visit,
)


def replies_are_accepted_by_the_server(method: type[Method], norm: Norm) -> None:
    """As `upload_like` and `check_upload` demand, in the first round and later."""
    rounds, example = two_rounds(method(), norm, MIXED, [1] * 9), _upload_example(method(), norm)
    for update, _ in (*rounds.first, *rounds.second):
        _require_accepted(method(), norm, update, example)
    if example is None:
        raise NotOffered("its uploads are not checked: define `upload_like`")


def _upload_example(method: Method, norm: Norm) -> Tensors | None:
    model = toy_model(norm)
    with torch.no_grad(), evaluating(model):
        levels = method.levels_of(model(torch.zeros(2, 1, 8, 8)))
    width = sum(level.shape[1] for level in levels)
    return method.upload_like(dict(model.named_parameters()), CLASSES, width)


def _require_accepted(
    method: Method, norm: Norm, update: ClientUpdate, example: Tensors | None
) -> None:
    schema = Schema(method, TRAINING, example)
    try:
        check_update(update, Broadcast(1, snapshot(toy_model(norm)), {}), schema)
    except ProtocolError as error:
        raise Broken(f"the server would reject its replies: {error}") from error


def uploads_stay_within_their_sensitivity(method: type[Method], norm: Norm) -> None:
    """What [privacy] relies on, for clients with any data, however long their uploads would be."""
    sensitivity = method().upload_sensitivity()
    if sensitivity is None:
        raise NotOffered("[privacy] refuses it: define `upload_sensitivity`")
    if sensitivity or any(map(method.overrides, SERVER_HOOKS)):
        _require_private(method())
    if not sensitivity:
        return
    clipped = [method().clip_upload(upload) for upload in _uploads_of_neighbours(method(), norm)]
    for name, furthest in sensitivity.items():
        rows = torch.stack([upload[name].flatten() for upload in clipped])
        apart = float(torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").max())
        if not apart <= furthest * (1 + 1e-9):  # NaN is not either
            raise Broken(
                f"after clip_upload, {name} of two clients can be {apart:.4g} apart in L2, and "
                f"upload_sensitivity says {furthest:.4g}"
            )


def _uploads_of_neighbours(method: Method, norm: Norm) -> Iterator[dict[str, Tensor]]:
    """Of clients with different labels and pictures, and what others might send: from nothing to
    far too much, and with nothing in common. Numbers keep their signs if all are alike."""
    for seed, labels in enumerate((MIXED, [1] * 9, [3] * 40, [0, 2])):
        images = toy_images(labels, seed)
        for pixels in (images.pixels, torch.full_like(images.pixels, 255)):
            data = replace(toy_client(labels), images=Images(pixels, images.labels))
            upload = visit(method, data, norm=norm).update.upload
            mixed_signs = any((t < 0).any() and (t > 0).any() for t in upload.values())
            for factor in (0.0, 1e-3, 1.0, 1e9, *([-1.0, -1e9] if mixed_signs else [])):
                scaled = {name: tensor.double() * factor for name, tensor in upload.items()}
                yield scaled
                for first in (0, 1):  # with zeros in every second place
                    places = {n: torch.arange(t.numel()).view(t.shape) for n, t in scaled.items()}
                    yield {n: t.where(places[n] % 2 == first, 0.0) for n, t in scaled.items()}


def _require_private(method: Method) -> None:
    model = toy_model("group")  # which [privacy] covers
    settings, example = PrivacySettings(clip=1.0, noise=1.0), _upload_example(method, "group")
    try:
        check_covered(settings, method, "uniform", model, example)
    except ConfigError as error:
        raise Broken(str(error)) from error
    trainable = frozenset(name for name, _ in model.named_parameters())
    protection = Protection(settings, method, trainable, example or {}, seed=0)
    sent = Broadcast(1, snapshot(model), {})
    updates = []
    for client, labels in enumerate((MIXED, [1] * 9)):
        try:
            update = visit(method, toy_client(labels), norm="group", client=client).update
        except ConfigError as error:
            raise NotOffered(f"it refuses the networks that [privacy] covers: {error}") from error
        updates.append(protection.protect(update, sent))
        _require_accepted(method, "group", updates[-1], example and in_floats(example))
    state = averaged(method, "group", updates)
    for tensors in (state.shared, state.kept, state.weights):
        if (name := not_finite(tensors)) is not None:
            raise Broken(f"with noise on the replies, {name} on the server is not finite")


STEPS = (1e-5, 1e-6, 1e-7, 1e-8)  # of the finite differences
SERVER_HOOKS = ("merge", "merge_mean", "weigh", "server_step", "shared_for")
HOOKS = (
    *("start", "objective", "gradient", "upload", "remember", "own_objective", "own_weights"),
    *SERVER_HOOKS,
)


Check = Callable[[type[Method], Norm], str | None]  # returns a remark, if any, where it holds


def overridden_hooks(method: type[Method]) -> list[str]:
    return [hook for hook in HOOKS if method.overrides(hook)]


def _hashes(rounds: Rounds) -> list[str]:
    return [sha256(reply.update.weights) for reply in rounds.second]


def repeatable(method: type[Method], norm: Norm) -> None:
    again = fresh_rounds(method(), norm, toys.TWO_CLIENTS, toys.TRAINING)
    if _hashes(again) != _hashes(two_rounds(method(), norm)):
        raise Broken("two equal rounds gave different weights: something random is not seeded")


def equals_fedavg_at_its_neutral_value(method: type[Method], norm: Norm) -> None:
    if method.neutral is None:
        raise NotOffered("it has none")
    neutral = dict(method.neutral)
    if not neutral and "mu" in [field.name for field in fields(method)]:
        neutral = {"mu": 0.0}
    if not neutral and overridden_hooks(method):
        raise Broken(
            "say at which values of its fields it is FedAvg, as in neutral = {'mu': 0.0}, or that "
            "it never is: neutral = None"
        )
    at_neutral, fedavg = replace(method(), **neutral), METHODS["fedavg"]()
    values = ", ".join(f"{key} = {value}" for key, value in neutral.items())
    if _hashes(two_rounds(at_neutral, norm)) != _hashes(two_rounds(fedavg, norm)):
        raise Broken(f"with {values} its weights are not FedAvg's")
    if method.overrides("server_step"):
        states = (partial_rounds(one, norm) for one in (at_neutral, fedavg))
        for ours, plain in zip(*states, strict=True):
            if sha256(ours.weights) != sha256(plain.weights):
                raise Broken(
                    f"with {values} the server's weights are not FedAvg's after round {ours.round} "
                    f"of a partial cohort"
                )


def differs_from_fedavg_otherwise(method: type[Method], norm: Norm) -> None:
    fedavg = METHODS["fedavg"]
    if method is fedavg:
        return
    if not overridden_hooks(method):
        if method.personal:
            return  # what "keeps personal parts at home" tests is all that it is
        raise Broken(f"it is FedAvg: it overrides none of the hooks ({', '.join(HOOKS)})")
    if _hashes(two_rounds(method(), norm)) != _hashes(two_rounds(fedavg(), norm)):
        return
    if method().has_own_model:
        for update, memory in two_rounds(method(), norm).second:
            own = personal_and_rest(memory)[0]
            if all(torch.equal(own[name], update.weights[name]) for name in own):
                raise Broken("a client's own model has every bit of the shared one")
        return
    if method.overrides("weigh") or method.overrides("server_step"):
        # They may do more only if clients disagree.
        alone = [toy_client([label] * 12) for label in range(CLASSES)]
        moved = [
            averaged(
                one, norm, [visit(one, d, norm=norm, client=k).update for k, d in enumerate(alone)]
            ).weights
            for one in (method(), fedavg())
        ]
        if sha256(moved[0]) != sha256(moved[1]):
            return
    if method.overrides("server_step"):
        # It may do more only if clients are away.
        ends = [partial_rounds(one, norm)[-1].weights for one in (method(), fedavg())]
        if sha256(ends[0]) != sha256(ends[1]):
            return
    raise Broken("with its default fields every bit is FedAvg's: its term is zero")


def calls_all_that_it_defines(method: type[Method], norm: Norm) -> None:
    """A hook by another library's name, such as `aggregate`, would train FedAvg unnoticed."""
    own = set[str]().union(*(public_functions(c) for c in method.__mro__ if issubclass(c, Method)))
    functions = [
        function
        for place in (*map(vars, method.__mro__), vars(sys.modules[method.__module__]))
        for function in place.values()
        if isinstance(function, FunctionType)
    ]
    called = set[str]().union(*(_names_in(function.__code__) for function in functions))
    if unknown := sorted(own - called - set(dir(OnLevels))):
        raise Broken(f"nobody calls {unknown[0]}; the hooks are {', '.join(HOOKS)}")


def _names_in(code: CodeType) -> set[str]:
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*map(_names_in, inner))


def trains_from_the_model_that_is_scored(method: type[Method], norm: Norm) -> None:
    """A client with a single image takes no step, and sends back what it got."""
    if method.overrides("start"):
        raise NotOffered("no: its `start` says where clients begin")
    rounds = two_rounds(method(), norm)
    reply = visit(method(), toy_client([0]), received=rounds.received, norm=norm).update
    if sha256(reply.weights) != sha256(rounds.weights):
        raise Broken(
            "clients begin with other weights than the server's, which are scored: move those in "
            "`server_step`, or say in `start` where clients begin"
        )


def gradient_agrees_with_finite_differences(method: type[Method], norm: Norm) -> str | None:
    """The slope of the objective along random directions, in float64, away from `received`; that of
    the client's own model too, if there is one."""
    client, batch = client_in_float64(method(), norm)
    _compare_slopes(method().objective(client), client.model, batch)
    if method.overrides("own_objective"):
        _compare_slopes(method().own_objective(client), client.own_model, batch)
    if "gradient" in overridden_hooks(method):
        return "of its objective; what its own `gradient` makes of it is for its own test"
    return None


def _compare_slopes(objective: Objective, model: FeatureModel, batch: Batch) -> None:
    parameters = [live for live in model.parameters() if live.requires_grad]
    gradients = torch.autograd.grad(  # a method may leave parameters alone
        objective(batch), parameters, allow_unused=True, materialize_grads=True
    )
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        directions = [
            torch.randn(p.shape, generator=generator, dtype=p.dtype) / p.numel() ** 0.5
            for p in parameters
        ]
        claimed = float(sum((g * d).sum() for g, d in zip(gradients, directions, strict=True)))
        # A ReLU may have its kink within a step: then a shorter one decides.
        slopes = [_slope(lambda: objective(batch), parameters, directions, s) for s in STEPS]
        measured = min(slopes, key=lambda slope: abs(slope - claimed))
        if abs(claimed - measured) > 1e-6 + 1e-4 * abs(measured):
            raise Broken(f"a slope of {measured:.6g} was measured, its gradient says {claimed:.6g}")


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


def client_in_float64(method: Method, norm: Norm) -> tuple[Client, Batch]:
    """A client in its second round that has already moved a little, and a batch."""
    rounds = two_rounds(method, norm)

    def double(tensors: Tensors) -> dict[str, Tensor]:
        return {k: t.double() if t.is_floating_point() else t for k, t in tensors.items()}

    model = toy_model(norm).double().train()
    model.load_state_dict(double(rounds.second[1].update.weights))
    data = toy_client(MIXED)
    second_view = method.second_view
    batch = next(data.training_batches(1, 12, 0, 2, 0, second_view=second_view))
    view = batch.second_view.double() if batch.second_view is not None else None
    memory: Tensors = double(rounds.first[0].memory)
    own, memory = personal_and_rest(memory) if method.has_own_model else ({}, memory)
    client = Client(
        id=0,
        round=2,
        model=model,
        received=double(rounds.weights),
        shared=double(addressed(rounds.received, method, 0).shared),
        memory=memory,
        own=own,
        data=data,
        training=toys.TRAINING,
    )
    return client, Batch(batch.images.double(), batch.labels, view)


def statistics_move_with_training_and_are_averaged(method: type[Method], norm: Norm) -> None:
    rounds = two_rounds(method(), norm)
    updates = [reply.update for reply in rounds.first]
    for update in updates:
        for name, value in update.weights.items():
            if name.endswith("num_batches_tracked") and int(value) != update.num_steps:
                raise Broken(f"{name} counted {int(value)} batches in {update.num_steps} steps")
    weights = averaged(method(), norm, updates).weights
    for name in weights:
        if name.endswith(("running_mean", "running_var")):
            shares = torch.tensor(method().weigh(updates, [1.0] * len(updates)))
            sent = torch.stack([update.weights[name] for update in updates], dim=-1)
            mean, own = sent @ shares / shares.sum(), weights[name]
            if method.keeps_replies:  # it may put neurons in another order
                mean, own = mean.mean(), own.mean()
            if not torch.allclose(own, mean, atol=1e-6):
                raise Broken(f"{name} is not the clients' mean")


def _stays_finite(*labels: Sequence[int]) -> Check:
    def check(method: type[Method], norm: Norm) -> None:
        rounds = two_rounds(method(), norm, *labels)
        for update, memory in (*rounds.first, *rounds.second):
            _require_finite(update.weights, update.upload, memory, rounds.shared, rounds.state.kept)

    return check


def _require_finite(*messages: Tensors) -> None:
    for tensors in messages:
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and not tensor.isfinite().all():
                raise Broken(f"{name} is not finite")


def works_in_the_first_round(method: type[Method], norm: Norm) -> None:
    """Nothing is shared or remembered yet."""
    update, _ = visit(method(), toy_client(MIXED), norm=norm)
    if update.num_steps == 0:
        raise Broken("no step was taken")


def leaves_what_it_was_given_untouched(method: type[Method], norm: Norm) -> None:
    rounds, data = fresh_rounds(method(), norm, (MIXED,), TRAINING), toy_client(MIXED)
    given: dict[str, Tensors] = {
        "received": dict(rounds.weights),
        "shared": dict(rounds.shared),
        "memory": dict(rounds.first[0].memory),
        "kept": dict(rounds.state.kept),
        "data": {"pixels": data.images.pixels, "labels": data.images.labels},
    }
    before = copy.deepcopy(given)
    received = Broadcast(2, given["received"], given["shared"])
    sent = addressed(received, method(), 0)
    visit(method(), data, received=sent, memory=given["memory"], norm=norm)
    method().merge(given["shared"], [rounds.second[0].update.upload], 1)
    toy_server(method(), toy_model(norm), 1).aggregate(
        replace(
            rounds.state, weights=given["received"], shared=given["shared"], kept=given["kept"]
        ),
        received,
        [reply.update for reply in rounds.second],
    )
    for name, tensors in given.items():
        if sha256(tensors) != sha256(before[name]):
            raise Broken(f"`{name}` was changed")


def merge_hears_every_client(method: type[Method], norm: Norm) -> None:
    updates = [reply.update for reply in two_rounds(method(), norm, MIXED, [0, 1, 2]).first]
    uploads = [update.upload for update in updates]
    if not any(uploads):
        return
    swapped = [replace(update, upload=uploads[1 - i]) for i, update in enumerate(updates)]
    if method().weigh(updates, [1.0, 1.0]) != method().weigh(swapped, [1.0, 1.0]):
        return  # it is for this

    def shared(chosen: list[ClientUpdate]) -> Tensors:
        if method.keeps_replies:  # its `server_step` may read them
            return averaged(method(), norm, chosen).shared
        return method().merge({}, [update.upload for update in chosen], 2)

    for update in updates:
        if sha256(shared(updates)) == sha256(shared([update])):
            raise Broken("what is shared does not depend on every client's upload")


def what_it_sends_and_keeps_survives_the_codec(method: type[Method], norm: Norm) -> str | None:
    """Messages, memories and checkpoints have this format."""
    rounds, wide = two_rounds(method(), norm), set[str]()
    for update, memory in rounds.second:
        for tensors in (update.weights, update.upload, memory, rounds.shared, rounds.state.kept):
            decoded = from_rows(load(save(as_rows(tensors))))
            if checksum({name: decoded[name] for name in tensors}) != checksum(tensors):
                raise Broken("a tensor came back changed")
        for tensors in (update.upload, rounds.shared):
            wide |= {
                name
                for name, tensor in tensors.items()
                if tensor.dtype == torch.float64 and tensor.numel() > 1  # one number costs nothing
            }
    return f"{min(wide)} is sent in float64: .float() would halve that traffic" if wide else None


def continues_after_an_unused_reply(method: type[Method], norm: Norm) -> None:
    """The client then receives what others have shared since, and has no memory of its own."""
    rounds = two_rounds(method(), norm)
    sent = addressed(rounds.received, method(), 9)
    update, memory = visit(method(), toy_client(MIXED), received=sent, norm=norm, client=9)
    _require_finite(update.weights, update.upload, memory)


def withstands_forged_uploads(method: type[Method], norm: Norm) -> None:
    """Under a robust rule for weights: two of seven clients send minus ten times what they should,
    and what is shared stays within twice the span of the honest clients."""
    strict = method().fitted(robust=True)
    robust = ServerSettings("median")
    try:
        robust.check_method(strict)
    except ConfigError as error:
        raise NotOffered(str(error)) from error
    updates = [visit(strict, toy_client(MIXED[k:]), norm=norm, client=k).update for k in range(7)]
    uploads = [update.upload for update in updates]
    forged = [{name: -10 * tensor for name, tensor in upload.items()} for upload in uploads[:2]]
    shared_alone = [strict.merge({}, [upload] * 7, 7) for upload in uploads]
    shared_by_all = strict.merge({}, [*forged, *uploads[2:]], 7)
    for name, tensor in shared_by_all.items():
        honest = torch.stack([s[name].double() for s in shared_alone if name in s])
        low, high = honest.aminmax(dim=0)
        slack = 0.5 * (high - low) + 1e-6
        if ((tensor < low - slack) | (tensor > high + slack)).any():
            raise NotOffered("no: two of seven steer what it shares, whatever server.aggregation")
    if not method.overrides("server_step"):
        return
    server = replace(toy_server(strict, toy_model(norm), 7), settings=robust)
    state = ServerState(0, snapshot(toy_model(norm)), {}, {})
    names = server.trainable

    def moved(replies: Sequence[ClientUpdate]) -> float:
        after = server.aggregate(state, server.broadcast(state), replies)[0].weights
        return sum(float((after[name] - state.weights[name]).square().sum()) for name in names)

    lies = [copy.deepcopy(update) for update in updates[:2]]
    for lie in lies:
        for name in names:
            lie.weights[name].lerp_(state.weights[name], 11)  # sent - 10 (w - sent)
    if moved([*lies, *updates[2:]]) > 9 * moved(updates):
        raise NotOffered("no: two of seven steer the server's step, whatever server.aggregation")


def leaves_frozen_parts_alone(method: type[Method], norm: Norm) -> None:
    """Two rounds with the first layer frozen, of which nobody sends anything."""
    model = toy_model(norm)
    freeze(model, ["convolutions.0", "norms.0"])
    frozen = copies(frozen_tensors(model))
    for broadcast, _, _ in _rounds_without(method(), model, frozenset(frozen), "frozen"):
        if broadcast.weights.keys() & frozen.keys():
            raise Broken("frozen weights were sent")
    if sha256(frozen_tensors(model)) != sha256(frozen):
        raise Broken("frozen weights were changed")


def keeps_personal_parts_at_home(method: type[Method], norm: Norm) -> None:
    """Two rounds with the method's personal parts, or a personal classifier: it moves, and nobody
    hears of it. Methods of the user's own may send something of every parameter, and then cannot.
    Where the method itself has a model of every client's own, that moves instead."""
    if method().has_own_model:
        rounds = two_rounds(method(), norm)
        owns = [personal_and_rest(visit.memory)[0] for visit in (rounds.first[0], rounds.second[0])]
        if sha256(owns[0]) == sha256(owns[1]):
            raise Broken("a client's own model does not move")
        return
    model = toy_model(norm)
    personalise(model, method.personal or ["classifier"])
    own = frozenset(personal_tensors(model))
    first = before = snapshot(model, own)
    try:
        for broadcast, memory, state in _rounds_without(method(), model, own, "personal"):
            kept, _ = personal_and_rest(memory)
            if sha256(kept) != sha256(snapshot(model, own)):
                raise Broken("the client did not keep its personal part")
            if sha256(kept) == sha256(before):
                raise NotOffered("it does not train the classifier")
            if sha256({name: state.weights[name] for name in own}) != sha256(first):
                raise Broken("the server's personal part has changed")
            visit(method(), toy_client([0, 1] * 4), received=broadcast, model=model)  # another one
            before = snapshot(model, own)
    except (ConfigError, KeyError) as error:
        raise NotOffered(f"it does not work with federation.personal: {error}") from error


def _rounds_without(
    method: Method, model: FeatureModel, unsent: frozenset[str], kind: str
) -> Iterator[tuple[Broadcast, Tensors, ServerState]]:
    """Two rounds of one client that does not send these weights: what it received and remembers,
    and what the server made of its reply."""
    server = toy_server(method, model, 1, unsent)
    state = ServerState(0, snapshot(model), {}, {})
    memory: Tensors = {}
    for _ in range(2):
        broadcast = server.broadcast(state)
        update, memory = visit(
            method, toy_client(MIXED), received=broadcast, memory=memory, model=model
        )
        if unsent & (update.weights.keys() | update.upload.keys()):
            raise Broken(f"{kind} weights were sent")
        state, reports = server.aggregate(state, broadcast, [update])
        if reports[0].outcome != "ok":
            raise Broken(reports[0].reason)
        yield broadcast, memory, state


def merging_nothing_changes_nothing(method: type[Method], norm: Norm) -> None:
    shared = two_rounds(method(), norm, MIXED).shared
    if sha256(method().merge(shared, [], 5)) != sha256(shared):
        raise Broken("merging no upload changed what is shared")


PROPERTIES: dict[str, Check] = {
    "works in the first round": works_in_the_first_round,
    "gives the same bits again": repeatable,
    "equals FedAvg at its neutral value": equals_fedavg_at_its_neutral_value,
    "differs from FedAvg otherwise": differs_from_fedavg_otherwise,
    "defines nothing that nobody calls": calls_all_that_it_defines,
    "gradient agrees with finite differences": gradient_agrees_with_finite_differences,
    "BatchNorm moves with training alone and is averaged": (
        statistics_move_with_training_and_are_averaged
    ),
    "survives a client with one class": _stays_finite([2] * 20),
    "survives a batch of two without positives": _stays_finite([0, 1]),
    "survives a batch of two without negatives": _stays_finite([1, 1]),
    "survives a class that nobody has": _stays_finite([0, 1, 3] * 7, [0, 0, 1]),
    "survives a last batch of one": _stays_finite([0, 1, 2, 3, 0, 1, 2, 3, 1]),
    "trains from the model that is scored": trains_from_the_model_that_is_scored,
    "leaves received, shared, memory and data untouched": leaves_what_it_was_given_untouched,
    "uses every client's upload": merge_hears_every_client,
    "no uploads, no change": merging_nothing_changes_nothing,
    "continues after an unused reply": continues_after_an_unused_reply,
    "withstands forged uploads under a robust rule": withstands_forged_uploads,
    "leaves frozen parts alone": leaves_frozen_parts_alone,
    "keeps personal parts at home": keeps_personal_parts_at_home,
    "sends what the server expects": replies_are_accepted_by_the_server,
    "keeps its upload within the sensitivity it claims": uploads_stay_within_their_sensitivity,
    "sends and keeps what survives being sent": what_it_sends_and_keeps_survives_the_codec,
}
