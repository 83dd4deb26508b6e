"""The page about what a run gives away: pictures, rates, and what to make of them."""

from __future__ import annotations

import base64
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

from dcfl.analysis.leaks import LOW_RATE, Leaks
from dcfl.comparisons.groups import setting
from dcfl.report.document import Page, Section, Table, write_page
from dcfl.report.text import number, plural, without_folders
from dcfl.system.storage import strict_json, write_whole

SHOWN = 128  # pixels, about, of a picture on the page


def write_leaks(leaks: Leaks, out: Path) -> Path:
    page = write_page(page_about(leaks), out / "attack.html")
    write_whole(out / "attack.json", strict_json(leaks.as_json(), indent=1) + "\n")
    return page


def page_about(leaks: Leaks) -> Page:
    sections = [
        *([_pictures(leaks)] if leaks.rebuilt else []),
        *([_prototypes(leaks)] if leaks.prototypes else []),
        _membership(leaks),
    ]
    clip, noise, where = (setting(leaks.run, f"privacy.{x}") for x in ("clip", "noise", "where"))
    place = "in shares" if where == "sum" else f"at the {where}"
    facts = [
        ("Method", str(setting(leaks.run, "method.name"))),
        ("Data set", without_folders(str(setting(leaks.run, "data.dataset")))),
        ("Model", str(setting(leaks.run, "model.name"))),
        ("Privacy", f"clip {clip:g}, noise {noise:g} {place}" if clip else "off"),
    ]
    title = f"What {leaks.run.folder.resolve().name} gives away"
    return Page(title, facts, headline(leaks), sections)


def headline(leaks: Leaks) -> str:
    best = leaks.membership[-1]
    attack = "LiRA" if best.shadows else "Loss"
    said = [f"{attack} tells training images from others with an AUC of {number(best.auc)}."]
    if leaks.prototypes and (found := leaks.prototypes[0].found) is not None:
        share = f"{number(100 * found, 0)} % of the images that are alone in their class"
        said.append(f"Prototypes give away {share}.")
    if leaks.rebuilt:
        psnr = number(float(np.mean(leaks.rebuilt[0].psnr)), 1)
        images = plural(len(leaks.originals), "image")
        said.append(f"{images} came back from a bare gradient at {psnr} dB.")
    return " ".join(said)


def _pictures(leaks: Leaks) -> Section:
    images = plural(len(leaks.originals), "image")
    rows = {"As the client has them": leaks.originals}
    rows |= {f"From {one.seen}": one.pictures for one in leaks.rebuilt}
    text = (
        f"Whoever sees the gradient of {images} of client {leaks.client} at the final model looks "
        "for pictures with the same one, and knows the labels and the model. This is close to "
        "the worst case: the update of a real visit has many steps on many images, and tells less "
        "of each. Noise at clients is the deviation of every number, as a multiple of the "
        "gradient's length: [privacy] with that noise, and a clip that just fits. Noise at the "
        "server is a multiple of the clip, once for the sum: the server itself sees what it would "
        "see without. Under secure aggregation it sees the sum alone, and a sum of few clients "
        "may still give pictures back, if clients do not add shares of noise."
    )
    image = Markup('{}<br><img alt="{}" src="{}">')
    shown = [image.format(name, name, picture_url(pictures)) for name, pictures in rows.items()]
    cells = [
        {
            "protection": f"{one.protection}\n{one.seen}",
            "seen by": one.reader,
            "PSNR, dB": ", ".join(number(db, 1) for db in one.psnr),
        }
        for one in leaks.rebuilt
    ]
    note = "Above 30 dB a picture is hard to tell from the original; below 10 dB it is another one."
    return Section("Pictures from a gradient", [text, *shown], [Table.of(cells, note=note)])


def _prototypes(leaks: Leaks) -> Section:
    bare = leaks.prototypes[0]
    text = (
        "Every client's sums and counts at the final model, as the server gets them. Counts say "
        "which classes a client has: of pairs of a class that is there and one that is not, the "
        "AUC is the share in which the first has the higher count; 1 is certainty, 0.5 guessing. "
        "The sum of a class with a single image is that image's embedding. There are "
        f"{bare.singles:,} such sums. Whoever has the picture finds it among all training images "
        "as the one with the nearest embedding. Noise is the deviation of every number, as a "
        "multiple of the length of what is sent. [privacy] refuses prototypes; this is what its "
        "noise would do."
    )
    cells = [
        {
            "min_class_count": f"{one.min_class_count}",
            "noise": f"{one.noise:g}",
            "classes told, AUC": number(one.presence, 3),
            "single images sent": f"{one.singles:,}",
            "cosine with the image": "-" if one.cosine is None else number(one.cosine, 3),
            "found among all images": "-" if one.found is None else f"{number(100 * one.found)} %",
        }
        for one in leaks.prototypes
    ]
    return Section("What prototypes tell", [text], [Table.of(cells)])


def _membership(leaks: Leaks) -> Section:
    first, last = leaks.membership[0], leaks.membership[-1]
    text = (
        "Whoever has the final model calls an image one of the training set if its loss is low. "
        f"Of {first.members:,} training images and {first.others:,} others, the AUC is the share "
        "of pairs in which the training image has the lower loss: 0.5 is guessing."
    )
    lira = (
        f"LiRA compares with {last.shadows} shadow models, each trained on a random half of the "
        "training images: a training image is one that the final model is surer of than the "
        "shadows without it. It needs images like those of the clients. This is its cheap form; "
        "with hundreds of shadows it finds more."
        if last.shadows
        else "This attack needs no other models. --shadows 4 adds LiRA, which trains some and "
        "finds more."
    )
    rate = f"found at {100 * LOW_RATE:g} % false alarms"
    cells = [
        {"attack": one.attack, "AUC": number(one.auc, 3), rate: f"{number(100 * one.found, 1)} %"}
        for one in leaks.membership
    ]
    return Section("Who was in the training set", [text, lira], [Table.of(cells)])


def picture_url(pictures: NDArray[np.float64]) -> str:
    """Pictures in 0 to 1 side by side, as a PNG in a data URL."""
    times = max(1, SHOWN // pictures.shape[1])
    colours = np.broadcast_to(pictures, (*pictures.shape[:3], 3))
    framed = np.pad(colours, ((0, 0), (0, 0), (0, 1), (0, 0)), constant_values=1.0)
    strip: NDArray[Any] = np.concatenate([*framed], axis=1).repeat(times, 0).repeat(times, 1)
    png = BytesIO()
    Image.fromarray((strip * 255).round().astype(np.uint8)).save(png, "png")
    return f"data:image/png;base64,{base64.b64encode(png.getvalue()).decode()}"
