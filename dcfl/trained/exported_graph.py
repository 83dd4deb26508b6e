"""The formats of exported models: how each is written, and how its own runtime reads it."""

from __future__ import annotations

import copy
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from dcfl.data.datasets import Size
from dcfl.errors import ConfigError
from dcfl.models import FeatureModel, ModelSettings, build_model
from dcfl.models.adapted import SIDE
from dcfl.models.output import Embedding
from dcfl.models.parts import within
from dcfl.system.wording import install_command, one_line, printable
from dcfl.trained.subject import inputs_of


class Wiring(NamedTuple):
    prepare: bool = False  # pixels as they are go in, probabilities come out first
    embedding: Embedding | None = None  # comes out last


class ExportedGraph(nn.Module):
    """A trained model, with the preparation of its pixels if that is wanted. In evaluation mode.

    Takes prepared images [B, C, H, W], or pixels, uint8 [B, H, W, C]; prepared or raw feature
    vectors [B, d].
    """

    def __init__(self, model: FeatureModel, settings: ModelSettings, wiring: Wiring) -> None:
        super().__init__()
        self.model, self.settings, self.wiring = model, settings, wiring
        self.preparation, shape = inputs_of(model)
        if not self.preparation.mean:
            raise ConfigError("export is for models of images and of feature vectors")
        height, width, self.channels = shape
        if height != width:
            raise ConfigError(f"export is for square images, not {height} x {width} pixels")
        self.size, self.vectors = height, (height, width) == (1, 1)
        if self.vectors:
            first = torch.tensor(self.preparation.mean)
            second = torch.tensor(self.preparation.std)
        else:
            first, second = (number.clone() for number in self.preparation.per_channel)
        self.register_buffer("first", first, persistent=False)
        self.register_buffer("second", second, persistent=False)
        self.eval()

    @property
    def parameter_count(self) -> int:
        return sum(tensor.numel() for tensor in self.model.parameters())

    @property
    def input_name(self) -> str:
        if self.vectors:
            return "vectors"
        return "pixels" if self.wiring.prepare else "images"

    @property
    def input_words(self) -> str:
        if self.vectors:
            return f"{self.input_name}, float32 [batch, {self.channels}]"
        if self.wiring.prepare:
            shape = f"[batch, {self.size}, {self.size}, {self.channels}]"
            return f"{self.input_name}, uint8 {shape}, of this very size"
        shape = f"[batch, {self.channels}, {self.size}, {self.size}]"
        return f"{self.input_name}, float32 {shape}, normalised"

    @property
    def output_names(self) -> list[str]:
        names = ["probabilities", "logits"] if self.wiring.prepare else ["logits"]
        return [*names, "embedding"] if self.wiring.embedding else names

    def forward(self, inputs: Tensor) -> tuple[Tensor, ...]:
        output = self.model(self._prepared(inputs) if self.wiring.prepare else inputs)
        results = [output.logits]
        if self.wiring.prepare:
            results.insert(0, output.logits.softmax(dim=1))
        if self.wiring.embedding:
            results.append(output.z(self.wiring.embedding))
        return tuple(results)

    def _prepared(self, inputs: Tensor) -> Tensor:
        first, second = self.get_buffer("first"), self.get_buffer("second")
        if self.vectors:
            return (inputs - first) / second
        return inputs.permute(0, 3, 1, 2).float() * first[:, None, None] + second[:, None, None]


def graph_of(model: FeatureModel, settings: ModelSettings, wiring: Wiring) -> ExportedGraph:
    """A side head is there for training: it stays only if its output is wanted."""
    settings = replace(settings, weights="", weights_skip=(), freeze=())
    if settings.head.startswith(SIDE) and wiring.embedding != "projection":
        settings = replace(settings, head="none")
        channels, size = cast(tuple[int, Size], model.built_for)
        other = build_model(settings, channels, size, len(model.class_names), seed=0)
        state = {k: v for k, v in model.state_dict().items() if not within(k, (SIDE,))}
        other.load_state_dict(state)
        other.class_names, other.preparation = model.class_names, model.preparation
        other.image_shape, other.built_for = model.image_shape, model.built_for
        model = other.eval()
    return ExportedGraph(model.float(), settings, wiring)


Runtime = Callable[[Tensor], tuple[Tensor, ...]]  # an exported file, ready to be called
LONGEST_REASON = 300  # characters of what an exporter says


@dataclass(frozen=True)
class ExportFormat:
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


CLASS_NAMES = "class_names"  # JSON in every exported file: the classes in the order of the outputs


def _described(graph: ExportedGraph) -> dict[str, str]:
    return {CLASS_NAMES: json.dumps(graph.model.class_names)}


class OfOneSize(nn.Module):
    """A trace runs on inputs of any size, and is wrong for all but one."""

    def __init__(self, traced: nn.Module, shape: list[int]) -> None:
        super().__init__()
        self.traced, self.shape = traced, shape

    def forward(self, inputs: Tensor) -> Any:
        if list(inputs.shape[1:]) != self.shape:
            raise ValueError("inputs of another size than the model's")
        return self.traced(inputs)


def _torchscript_bytes(graph: ExportedGraph, example: Tensor) -> bytes:
    stream = io.BytesIO()
    traced = torch.jit.trace(graph, example, check_trace=False)  # type: ignore[no-untyped-call]
    script = torch.jit.script(OfOneSize(traced, list(example.shape[1:])))
    torch.jit.save(script, stream, _extra_files=_described(graph))
    return stream.getvalue()


def _torchscript_load(path: Path, _: ExportedGraph) -> Runtime:
    with _quiet_exporter():
        module = torch.jit.load(path)  # type: ignore[no-untyped-call]
    return lambda inputs: tuple(module(inputs))


def _onnx_bytes(graph: ExportedGraph, example: Tensor) -> bytes:
    any_batch = {"inputs": {0: torch.export.Dim.DYNAMIC}}
    program: Any = torch.onnx.export(
        torch.export.export(graph, (example,), dynamic_shapes=any_batch),
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
    model = copy.deepcopy(graph.model)
    model.load_state_dict(load(path.read_bytes()))
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
    "safetensors": ExportFormat(
        ".safetensors", "safetensors", _safetensors_bytes, _safetensors_load, computes=False
    ),
}
