"""Small pictures on disk for the tests of the readers."""

from pathlib import Path

import numpy as np
from PIL import Image
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def save(path: Path, image: Image.Image | int, **options: object) -> Path:
    """An image, or a number that becomes a grey square of that level."""
    if isinstance(image, int):
        image = Image.new("RGB", (8, 8), (image, image, image))
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)
    return path


def class_folders(folder: Path, **counts: int) -> Path:
    """`class_folders(x, cat=3)` is x/cat/0.png to 2.png; no two pictures are the same."""
    level = 0
    for name, count in counts.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            level += 1
            save(folder / name / f"{number}.png", level)
    return folder


def halves(left: object, right: object, size: tuple[int, int] = (16, 8)) -> Image.Image:
    image = Image.new("RGB", size, left)  # type: ignore[arg-type]
    image.paste(right, (size[0] // 2, 0, *size))  # type: ignore[arg-type]
    return image


def tiny_imagenet(folder: Path, classes: int = 3, train: int = 4, val: int = 2) -> Path:
    """Noise in the official layout."""
    root = folder / "tiny-imagenet-200"
    rng = np.random.default_rng(0)
    wnids = [f"n{90000000 - 7 * number:08}" for number in range(classes)]
    lines = []
    for label, wnid in enumerate(wnids):
        for number in range(train):
            save(root / "train" / wnid / "images" / f"{wnid}_{number}.JPEG", noise(rng))
        for number in range(val):
            name = f"val_{number * classes + label}.JPEG"
            save(root / "val" / "images" / name, noise(rng))
            lines.append(f"{name}\t{wnid}\t0\t0\t63\t63\n")
    (root / "wnids.txt").write_text("\n".join(wnids) + "\n")
    words = [f"{wnid}\tcrane, bird {label}\n" for label, wnid in enumerate(wnids[:-1])]
    (root / "words.txt").write_text("".join(words) + f"{wnids[-1]}\tgoldfish, Carassius auratus\n")
    (root / "val" / "val_annotations.txt").write_text("".join(lines))
    return root


def save_dicom(
    path: Path, levels: np.ndarray, syntax: str = ExplicitVRLittleEndian, **tags: object
) -> Path:
    """Grey levels of the array's dtype; the tags may say otherwise."""
    data = Dataset()
    data.file_meta = FileMetaDataset()
    data.file_meta.TransferSyntaxUID = syntax
    data.SOPClassUID = CTImageStorage
    data.SOPInstanceUID = "1.2.3"
    data.Rows, data.Columns = levels.shape[:2]
    data.SamplesPerPixel = 1
    data.PhotometricInterpretation = "MONOCHROME2"
    data.BitsAllocated = data.BitsStored = 8 * levels.dtype.itemsize
    data.PixelRepresentation = int(levels.dtype.kind == "i")
    for name, value in tags.items():
        setattr(data, name, value)
    data.HighBit = data.BitsStored - 1
    pixels = levels.tobytes()
    data.PixelData = pixels + bytes(len(pixels) % 2)
    path.parent.mkdir(parents=True, exist_ok=True)
    data.save_as(path, enforce_file_format=True)
    return path


def noise(rng: np.random.Generator) -> Image.Image:
    return Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8))
