"""The formats of exported models: how each is written, and how its own runtime reads it."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from dcfl.errors import ConfigError
from dcfl.system.installing import install_command
from dcfl.system.printable import one_line, printable
from dcfl.trained.exported_graph import ExportedGraph, rebuilt

Runtime = Callable[[Tensor], tuple[Tensor, ...]]  # an exported file, ready to be called
LONGEST_REASON = 300  # characters of what an exporter says


@dataclass(frozen=True)
class ExportFormat:
    """A kind of file."""

    suffix: str
    title: str
    to_bytes: Callable[[ExportedGraph, Tensor], bytes]  # the graph, and inputs to try it on
    load: Callable[[Path, ExportedGraph], Runtime]
    needs: tuple[str, ...] = ()  # packages
    extra: str = ""  # of dcfl, that installs them
    computes: bool = True  # by itself; otherwise it holds weights, for dcfl's own code

    def require_installed(self) -> None:
        for package in self.needs:
            if find_spec(package) is None:
                raise ConfigError(f"this format needs {package}: {install_command(self.extra)}")

    def written(self, graph: ExportedGraph, example: Tensor) -> bytes:
        """Exporters meet what they do not know with every kind of exception."""
        try:
            with torch.no_grad(), _quiet_exporter():
                return self.to_bytes(graph, example)
        except Exception as error:
            reason = printable(one_line(error), LONGEST_REASON)
            raise ConfigError(
                f"the network cannot be exported as {self.title}: {type(error).__name__}: {reason}"
            ) from error


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """They print, log and warn of other packages and of their future. What fails is raised."""
    before = logging.root.manager.disable
    lost = io.StringIO()
    with warnings.catch_warnings(), redirect_stdout(lost), redirect_stderr(lost):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(before)


def _program(graph: ExportedGraph, example: Tensor) -> torch.export.ExportedProgram:
    free = dict.fromkeys(graph.free_axes, torch.export.Dim.DYNAMIC)
    return torch.export.export(graph, (example,), dynamic_shapes={"inputs": free})


CLASS_NAMES = "class_names"  # JSON in every exported file: the classes in the order of the outputs


def _described(graph: ExportedGraph) -> dict[str, str]:
    return {CLASS_NAMES: json.dumps(graph.model.class_names)}


def _torch_export_bytes(graph: ExportedGraph, example: Tensor) -> bytes:
    stream = io.BytesIO()
    torch.export.save(_program(graph, example), stream, extra_files=_described(graph))
    return stream.getvalue()


def _torch_export_load(path: Path, _: ExportedGraph) -> Runtime:
    with path.open("rb") as stream, _quiet_exporter():
        module = torch.export.load(io.BytesIO(stream.read())).module()
    return lambda inputs: tuple(module(inputs))


def _torchscript_bytes(graph: ExportedGraph, example: Tensor) -> bytes:
    stream = io.BytesIO()
    script = torch.jit.trace(graph, example, check_trace=False)  # type: ignore[no-untyped-call]
    torch.jit.save(script, stream, _extra_files=_described(graph))
    return stream.getvalue()


def _torchscript_load(path: Path, _: ExportedGraph) -> Runtime:
    with _quiet_exporter():
        module = torch.jit.load(path)  # type: ignore[no-untyped-call]
    return lambda inputs: tuple(module(inputs))


def _onnx_bytes(graph: ExportedGraph, example: Tensor) -> bytes:
    program: Any = torch.onnx.export(
        _program(graph, example),
        input_names=[graph.input_name],
        output_names=graph.output_names,
        dynamo=True,
        verbose=False,
        external_data=False,
    )
    program.model.metadata_props.update(_described(graph))
    content: bytes = program.model_proto.SerializeToString()
    return content


def _onnx_load(path: Path, _: ExportedGraph) -> Runtime:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda inputs: tuple(
        torch.from_numpy(found) for found in session.run(None, {name: inputs.numpy()})
    )


def _safetensors_bytes(graph: ExportedGraph, _: Tensor) -> bytes:
    state = graph.model.state_dict()
    metadata = {"format": "pt", **_described(graph)}
    return save({name: state[name].contiguous() for name in sorted(state)}, metadata)


def _safetensors_load(path: Path, graph: ExportedGraph) -> Runtime:
    model = rebuilt(graph.model, graph.settings, load(path.read_bytes()))
    return ExportedGraph(model, graph.settings, graph.wiring)


FORMATS = {
    "onnx": ExportFormat(
        ".onnx",
        "ONNX",
        _onnx_bytes,
        _onnx_load,
        ("onnx", "onnxscript", "onnxruntime"),
        "onnx",
    ),
    "torchscript": ExportFormat(".pt", "TorchScript", _torchscript_bytes, _torchscript_load),
    "torch-export": ExportFormat(".pt2", "torch.export", _torch_export_bytes, _torch_export_load),
    "safetensors": ExportFormat(
        ".safetensors", "safetensors", _safetensors_bytes, _safetensors_load, computes=False
    ),
}
