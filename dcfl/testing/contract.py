"""Does a method or a network keep its promises? What `dcfl check` and the contract tests ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dcfl.config import method_named
from dcfl.engines.runner import reproducible
from dcfl.errors import ConfigError, DCFLError
from dcfl.messages import Tensors
from dcfl.methods import Method
from dcfl.methods.loading import load_methods, methods_in
from dcfl.models import ModelSettings
from dcfl.models.networks import Norm
from dcfl.models.own_models import BUILT_IN, model_in, register_model
from dcfl.models.parts import personal_and_rest
from dcfl.system.own_files import run_file
from dcfl.system.processes import Terminated
from dcfl.system.wording import described
from dcfl.tensors import snapshot, subtract, together
from dcfl.testing.model_properties import MODEL_PROPERTIES, Network, gradients_of
from dcfl.testing.properties import PROPERTIES, client_in_float64
from dcfl.testing.toys import Broken, NotOffered, toy_model, toy_server, two_rounds


@dataclass(frozen=True)
class Verdict:
    property: str
    holds: bool
    detail: str = ""
    crashed: bool = False  # with an error that nobody expected; what follows was not checked
    offered: bool = True  # False: it holds only in that nobody claims it


def check(
    what: str | Path | type[Method],
    *,
    norm: Norm = "batch",
    channels: int = 3,
    size: int = 32,
    classes: int = 10,
) -> dict[str, list[Verdict]]:
    """Whether a method or a network keeps its promises, tried on a small federation.

    Args:
        what: The name of a method or a network, the path of a Python file that defines some, or a
            class derived from `Method`.
        norm: The normalisation layers of the network that a method is tried with: "batch", "group"
            or "batch-nostats".
        channels: The channels of the images that a network is tried on.
        size: Their height and width in pixels.
        classes: How many classes it tells apart.

    Returns:
        For each method and network the verdicts, with `property`, `holds`, `detail` and `offered`
        (False: it claims nothing that could be broken), up to the first crash.

    Raises:
        ConfigError: There is no such method or network, or the file defines none.

    Example:
        >>> import dcfl
        >>> all(verdict.holds for verdict in dcfl.check("fedprox")["fedprox"])
        True
    """
    methods: dict[str, type[Method]] = {}
    models: list[str] = []
    if isinstance(what, type):
        methods[what.name] = what
    elif Path(what).suffix == ".py":
        methods, models = _defined_in(Path(what))
    elif what in BUILT_IN or ":" in str(what):
        models.append(str(what))
    else:
        methods[str(what)] = method_named(str(what))
    verdicts = {name: check_method(method, norm) for name, method in methods.items()}
    for name in models:
        verdicts[name] = check_model(Network(ModelSettings(name), channels, size, classes))
    return verdicts


def _defined_in(path: Path) -> tuple[dict[str, type[Method]], list[str]]:
    file = run_file(path)
    methods, model = methods_in(file), model_in(file)
    if not methods and model is None:
        raise ConfigError(
            f"{path} defines no method and no network: derive a class from dcfl.Method, or write "
            f"a function of (channels, size, classes) that returns a torch.nn.Module"
        )
    return methods, [register_model(path)] if model else []


def check_against(name: str, path: Path) -> dict[str, list[Verdict]]:
    """Does each method in a user's file compute the same as this one, with default fields?"""
    ours = method_named(name)()
    with reproducible(threads=1):
        return {own: _beside(ours, theirs()) for own, theirs in load_methods(path).items()}


def _beside(ours: Method, theirs: Method) -> list[Verdict]:
    """The gradients of a client in its second round, in float64 and at the same weights, and where
    the server and the clients' own models are after two rounds. Losses may differ by a constant,
    and are told."""
    at, batch = client_in_float64(ours, "batch")
    own, _ = client_in_float64(theirs, "batch")
    own.model.load_state_dict(at.model.state_dict())
    own.received, own.own = at.received, at.own
    losses, gradients, own_gradients = [], [], []
    for method, client in ((theirs, own), (ours, at)):
        loss = method.gradient(client, method.objective(client), batch)
        losses.append(loss.item())
        gradients.append(gradients_of(client.model))
        if method.overrides("own_objective"):
            method.own_objective(client)(batch).backward()  # type: ignore[no-untyped-call]
            own_gradients.append(gradients_of(client.own_model))
    server, clients = zip(*(_moved_in_two_rounds(method) for method in (theirs, ours)), strict=True)
    compare = partial(_as_of, ours.name)
    verdicts = [
        Verdict("loss", True, f"{losses[0]:.6g}, and {losses[1]:.6g} of {ours.name}"),
        compare("gradient", gradients, 1e-6),
        compare("the server's path in two rounds", server, 1e-3),  # float32
    ]
    if len(own_gradients) == 2:
        verdicts.append(compare("gradient of a client's own model", own_gradients, 1e-6))
    if any(clients):
        verdicts.append(compare("the clients' own models after two rounds", clients, 1e-3))
    return verdicts


def _moved_in_two_rounds(method: Method) -> tuple[Tensors, Tensors]:
    """How far the server's model has come, and those of the clients' own, if they have some."""
    rounds, model = two_rounds(method, "batch"), toy_model("batch")
    server, start = toy_server(method, model, len(rounds.second)), snapshot(model)
    updates = [reply.update for reply in rounds.second]
    state, _ = server.aggregate(rounds.state, server.broadcast(rounds.state), updates)
    owns = {
        f"{reply.update.client}": {
            name: tensor - start[name]
            for name, tensor in personal_and_rest(reply.memory)[0].items()
        }
        for reply in rounds.second
        if method.has_own_model
    }
    return subtract(state.weights, start), together(**owns)


def _as_of(name: str, what: str, found: Sequence[Tensors], tolerance: float) -> Verdict:
    """`found`: theirs and ours."""
    (theirs, ours), property = found, f"{what} as of {name}"
    if odd := sorted(theirs.keys() ^ ours.keys()):
        return Verdict(property, False, f"only one of the two has {odd[0]}")
    length, apart = (
        sum(float(tensor.double().square().sum()) for tensor in tensors.values()) ** 0.5
        for tensors in (ours, subtract(theirs, ours))
    )
    detail = f"{apart / (length or 1.0):.2g} apart, relative to its length" if apart else ""
    return Verdict(property, apart <= tolerance * length, detail)


def check_method(method: type[Method], norm: Norm = "batch") -> list[Verdict]:
    """Check every property of a method, with its default fields, up to the first crash."""
    return _verdicts({name: partial(check, method, norm) for name, check in PROPERTIES.items()})


def check_model(network: Network) -> list[Verdict]:
    """Every property of a network up to the first crash, or only why it cannot be built."""

    def size() -> str:
        return f"{sum(live.numel() for live in network.build().parameters()):,} parameters"

    built = _verdict("can be built", size)
    if not built.holds:
        return [built]
    checks = {name: partial(check, network) for name, check in MODEL_PROPERTIES.items()}
    return [built, *_verdicts(checks)]


def _verdicts(checks: Mapping[str, Callable[[], str | None]]) -> list[Verdict]:
    """What crashes once tends to crash in every check, and once is enough to mend it."""
    verdicts: list[Verdict] = []
    with reproducible(threads=1):  # networks this small would only wait for more
        for name, check in checks.items():
            verdicts.append(_verdict(name, check))
            if verdicts[-1].crashed:
                break
    return verdicts


def _verdict(name: str, check: Callable[[], str | None]) -> Verdict:
    try:
        remark = check()
    except NotOffered as reason:
        return Verdict(name, True, str(reason), offered=False)
    except Broken as broken:
        return Verdict(name, False, str(broken))
    except DCFLError as error:  # some only put into words what the user's own code raised
        foreign = not isinstance(error.__cause__, DCFLError | None)
        return Verdict(name, False, str(error), crashed=foreign)
    except Terminated:
        raise
    except (Exception, SystemExit) as error:  # what raises, or exits, fails the check
        return Verdict(name, False, described(error), crashed=True)
    return Verdict(name, True, remark or "")
