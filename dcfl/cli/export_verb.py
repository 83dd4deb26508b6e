"""`dcfl export`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dcfl.cli.embed_verbs import Layer
from dcfl.cli.options import Best, ClientNumber, Folder, ModelFile, run_own_files, which_model
from dcfl.system.printable import printable

if TYPE_CHECKING:
    from dcfl.trained.exported_graph import ExportedGraph


class Format(StrEnum):
    onnx = "onnx"
    torchscript = "torchscript"
    torch_export = "torch-export"
    safetensors = "safetensors"


def export(
    folder: Folder,
    format: Annotated[Format, typer.Option(help="The kind of file.")],
    best: Best = False,
    client: ClientNumber = None,
    prepare: Annotated[
        bool,
        typer.Option(
            "--prepare",
            help="Resizing and normalisation inside the file: pixels go in, probabilities come "
            "out.",
        ),
    ] = False,
    embedding: Annotated[
        Layer | None,
        typer.Option(
            show_default=False,
            help="An embedding comes out too: what the classifier sees, or the side head's output. "
            "Without this, a side head is left out.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The file to write; README.md, its card, is written beside it."
        ),
    ] = None,
    hub_folder: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write a folder as hubs of models want it: the file, config.json, README.md.",
        ),
    ] = None,
    license: Annotated[
        str, typer.Option(metavar="NAME", help="For the card: mit, apache-2.0, ...")
    ] = "unknown",
    model_file: ModelFile = None,
) -> None:
    """A trained model as a file for other programs, compared with the model before it is kept."""
    from dcfl.trained.export import ExportOptions, export_model

    options = ExportOptions(
        format=format.value,
        which=which_model(folder, best, client),
        prepare=prepare,
        embedding=embedding.value if embedding else None,
        out=out,
        hub_folder=hub_folder,
        license=license,
    )
    run_own_files(None, model_file)
    exported = export_model(folder, options)
    print(printable(f"model  {exported.path}"))
    print(printable(f"card   {exported.card}"))
    print(f"in     {_input_line(exported.graph)}")
    print(f"out    {', '.join(exported.graph.output_names)}")
    print(f"equal to the model within {exported.difference:.1g} on {exported.compared_on}")


def _input_line(graph: ExportedGraph) -> str:
    channels, size = graph.channels, graph.size
    if graph.vectors:
        return f"{graph.input_name}, float32 [batch, {channels}]"
    if not graph.wiring.prepare:
        return f"{graph.input_name}, float32 [batch, {channels}, {size}, {size}], normalised"
    if graph.wiring.fit:
        return f"{graph.input_name}, uint8 [batch, height, width, {channels}], of any size"
    exact = f"uint8 [batch, {size}, {size}, {channels}]"
    return f"{graph.input_name}, {exact}, of this very size: resizing is not in the file"
