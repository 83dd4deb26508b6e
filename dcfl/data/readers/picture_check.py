"""A look at all pictures of a folder before anybody trains on them: which classes, which broken."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dcfl.data.readers.folders import Reading, class_folders
from dcfl.data.readers.pictures import decode_all, images
from dcfl.system.wording import printable

_SIDE = 32  # pixels: whether a file can be decoded does not depend on the size
_BATCH = 2048  # pictures whose pixels are in memory at a time
_NAMED = 3  # broken pictures, of perhaps thousands


@dataclass(frozen=True)
class PictureCheck:
    folder: Path
    classes: Mapping[str, int]  # pictures by class, the broken ones too
    broken: Mapping[Path, str]  # and why

    @property
    def total(self) -> int:
        return sum(self.classes.values())

    @property
    def broken_text(self) -> str:
        """How many, and the first of them."""
        names = [
            f"{printable(os.path.relpath(path, self.folder))} ({why})"
            for path, why in sorted(self.broken.items())[:_NAMED]
        ]
        more = len(self.broken) - len(names)
        listed = ", ".join(names) + (f" and {more} more" if more else "")
        return f"{len(self.broken)} of {self.total}: {listed}"


def check_pictures(folder: Path) -> PictureCheck:
    """Decodes every picture; an error only if the folder as a whole cannot be read."""
    found = {
        name: [path for part in parts for path in sorted(images(part))]
        for name, parts in class_folders(folder).items()
    }
    paths = [path for pictures in found.values() for path in pictures]
    # Names that are hidden from this user are broken pictures too.
    decoding = Reading(_SIDE, broken="skip").decoding(folder)._replace(unreadable="skip")
    broken: dict[Path, str] = {}
    for start in range(0, len(paths), _BATCH):
        batch = paths[start : start + _BATCH]
        _, reasons = decode_all(batch, decoding)
        broken |= {batch[row]: why for row, why in reasons.items()}
    return PictureCheck(folder, {name: len(pictures) for name, pictures in found.items()}, broken)
