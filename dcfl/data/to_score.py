"""Images to score a trained model on: another data set than the one it was trained on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from dcfl.data.catalogue import load_dataset, reading_of
from dcfl.data.datasets import Images
from dcfl.data.readers.folders import read_to_score, site_folders
from dcfl.data.readers.pictures import in_grey
from dcfl.data.settings import DataSettings
from dcfl.errors import ConfigError
from dcfl.system.wording import printable, some


@dataclass(frozen=True)
class Wanted:
    class_names: tuple[str, ...]
    image_shape: tuple[int, ...]  # see FeatureModel
    pictures: bool = True


@dataclass(frozen=True)
class ToScore:
    name: str  # of the data set
    images: Images
    owners: dict[str, Images] = field(default_factory=dict)  # by site, if there are sites


def images_to_score(source: str, settings: DataSettings, wanted: Wanted) -> ToScore:
    """`source`: a data set's name, `folder:PATH`, `npz:PATH`, `sites:PATH`, or a path alone.

    Test images where the source has some, else all its images. Pictures are read as `settings`
    say, the settings of the training. Classes are matched by name; some may be missing.
    """
    name = _with_kind(source)
    kind, _, where = name.partition(":")
    path = Path(os.path.expanduser(where))
    if kind == "sites":
        return _sites(name, path, settings, wanted)
    if kind == "folder":
        return ToScore(name, _pictures(name, path, settings, wanted))
    dataset = load_dataset(DataSettings(dataset=name, path=settings.path))
    return ToScore(name, fitted(name, dataset.test, dataset.class_names, wanted))


def fitted(name: str, images: Images, class_names: Sequence[str], wanted: Wanted) -> Images:
    """Labelled as the model labels them. Refuses what it cannot judge."""
    unknown = [known for known in class_names if known not in wanted.class_names]
    if unknown:
        raise ConfigError(
            f"{printable(name)} has classes that the model does not know: {some(unknown)}; "
            f"it knows {some(wanted.class_names)}. Folders of sites are named as sites:PATH"
        )
    shape = tuple(images.pixels.shape[1:])
    if images.vectors and len(wanted.image_shape) == 3:  # an image of one pixel
        shape = (1, 1, *shape)
    if shape != wanted.image_shape:
        raise ConfigError(
            f"{printable(name)} has images of {_measures(shape)}, and the model was trained on "
            f"images of {_measures(wanted.image_shape)}"
        )
    labels = torch.tensor([wanted.class_names.index(known) for known in class_names])
    return Images(images.pixels, labels[images.labels], images.groups)


def _with_kind(source: str) -> str:
    """A path alone is a folder of pictures, or an .npz file."""
    path = Path(os.path.expanduser(source))
    if path.is_dir():
        return f"folder:{source}"
    return f"npz:{source}" if path.suffix == ".npz" and not source.startswith("npz:") else source


def _sites(name: str, path: Path, settings: DataSettings, wanted: Wanted) -> ToScore:
    folders, common = site_folders(path)
    owners = {
        printable(folder.name): _pictures(f"{name}/{folder.name}", folder, settings, wanted, number)
        for number, folder in enumerate(folders)
    }
    if common is not None:
        return ToScore(name, _pictures(f"{name}/test", common, settings, wanted), owners)
    pixels = torch.cat([images.pixels for images in owners.values()])
    labels = torch.cat([images.labels for images in owners.values()])
    known = [images.groups for images in owners.values() if images.groups is not None]
    groups = torch.cat(known) if len(known) == len(owners) else None
    return ToScore(name, Images(pixels, labels, groups), owners)


def _pictures(
    name: str, path: Path, settings: DataSettings, wanted: Wanted, site: int = 0
) -> Images:
    """Read as in training, in the size and with the channels that the model wants."""
    if not wanted.pictures:
        raise ConfigError(f"{printable(name)}: the model was not trained on pictures")
    size, _, channels = wanted.image_shape
    reading = replace(reading_of(settings), size=size, class_names=())
    arrays = read_to_score(path, reading, site)
    pixels = in_grey(arrays.test_pixels) if channels == 1 else arrays.test_pixels
    groups = torch.from_numpy(np.array(arrays.test_groups)) if len(arrays.test_groups) else None
    labels = torch.from_numpy(np.array(arrays.test_labels))
    images = Images(torch.from_numpy(pixels), labels, groups)
    return fitted(name, images, arrays.class_names, wanted)


def _measures(shape: tuple[int, ...]) -> str:
    if len(shape) != 3:
        return f"{list(shape)}"
    height, width, channels = shape
    return f"{height}x{width} pixels in {channels} channel{'' if channels == 1 else 's'}"
