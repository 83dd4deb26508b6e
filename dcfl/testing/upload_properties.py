"""The properties of what a method uploads: what the server accepts, what [privacy] relies on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from dcfl.client import evaluating
from dcfl.data import Images
from dcfl.errors import ConfigError, ProtocolError
from dcfl.messages import Broadcast, ClientUpdate, Tensors
from dcfl.methods import Method
from dcfl.models.layers import Norm
from dcfl.privacy import PrivacySettings, Protection, check_covered
from dcfl.server.validation import Schema, check_update
from dcfl.tensors import not_finite, snapshot
from dcfl.testing.toys import (
    CLASSES,
    MIXED,
    TRAINING,
    Broken,
    toy_client,
    toy_images,
    toy_model,
    two_rounds,
    visit,
)


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
            data = replace(toy_client(labels), images=Images(pixels, images.labels))
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
