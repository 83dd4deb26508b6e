"""Calls the client code of FL-bench, PFLlib, fluke, Flower's baselines and of authors.

Their classes are not started as they start them: `fit` or `train` is called on an object that has
what it reads, with our problem as data and plain SGD. No line of theirs is repeated here.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.audit.visits import (
    CLIENT,
    IMAGES,
    TARGETS,
    Network,
    OwnOfDitto,
    Theirs,
    Triple,
    Visit,
)
from benchmarks.oracles.problem import CLASSES, LABELS, LR, Stubs
from dcfl.messages import Tensors
from dcfl.methods import METHODS
from dcfl.tensors import snapshot

MU, ALPHA, TAU = 0.7, 0.3, 0.5
MISSING = (  # packages that they import and that play no part here
    "omegaconf hydra ray rich torchvision pynvml diskcache datasets wandb faker flwr easydict "
    "flwr_datasets cv2 medmnist typer transformers ujson h5py calmsize opacus cerberus tqdm seaborn"
)
BATCHES = [(IMAGES, TARGETS)]


def theirs(
    framework: str, method: str, visit: Visit, *files: str,
    momentum: float = 0.0, decay: float = 0.0, **fields: Any,
) -> Theirs:  # fmt: skip
    """Their visit, beside our method with the same values."""
    return Theirs(framework, method, files, visit, METHODS[method](**fields), momentum, decay)


def sgd(model: nn.Module, decay: float = 0.0) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=LR, weight_decay=decay)


def listed(tensors: Tensors) -> list[torch.Tensor]:
    return list(tensors.values())


def everything(folder: Path) -> Iterator[Theirs]:
    """All that is audited, from clones of the repositories in this folder."""
    sys.meta_path.append(Stubs(MISSING.split()))
    torch.nn.Module.cuda = torch.Tensor.cuda = lambda self: self  # type: ignore  # no GPU here
    logging.disable(logging.INFO)  # they log every epoch
    for repository, found in (
        ("FL-bench", fl_bench),
        ("PFLlib/system", pfllib),
        ("fluke", fluke),
        ("flower/baselines", flower),
        ("MOON", moon),
        ("FedDyn", feddyn),
    ):
        sys.path.insert(0, str(folder / repository))
        yield from found(folder / repository)
        sys.path.pop(0)
        for name in ("model", "utils", "data", "src"):  # names that several of them have
            for module in [m for m in sys.modules if m == name or m.startswith(f"{name}.")]:
                del sys.modules[module]


def fl_bench(folder: Path) -> Iterator[Theirs]:
    from src.client import ditto, fedavg, fedbabu, fedlc, fedprox, scaffold
    from src.client import feddyn as dyn
    from src.client import moon as contrast
    from src.server import fedavg as base
    from src.server import feddyn as server

    def client(weights: Tensors, steps: int, **own: Any) -> SimpleNamespace:
        model = Network(weights)
        settings = SimpleNamespace(
            common=SimpleNamespace(local_epoch=steps), optimizer=SimpleNamespace(lr=LR),
            fedprox=SimpleNamespace(mu=MU), moon=SimpleNamespace(mu=MU, tau=TAU),
            feddyn=SimpleNamespace(alpha=ALPHA, max_grad_norm=1e9), fedlc=SimpleNamespace(tau=1.0),
            ditto=SimpleNamespace(lamda=MU, pers_epoch=steps),  # codespell:ignore lamda
        )  # fmt: skip
        return SimpleNamespace(
            model=model, dataset=SimpleNamespace(train=lambda: None), local_epoch=steps,
            trainloader=BATCHES, device="cpu", criterion=nn.CrossEntropyLoss(),
            optimizer=sgd(model), lr_scheduler=None, args=settings, **own,
        )  # fmt: skip

    def plain(fit: Callable[[Any], None]) -> Visit:
        def visit(state: Any, received: Tensors, _: Tensors, steps: int) -> tuple[Tensors, Any]:
            own = client(received, steps)
            fit(own)
            return snapshot(own.model), None

        return visit

    def moons(state: Any, received: Tensors, _: Tensors, steps: int) -> tuple[Tensors, Any]:
        models = {"global_model": Network(received), "prev_model": Network(state or received)}
        own = client(received, steps, **models)
        contrast.MOONClient.fit(own)
        return snapshot(own.model), snapshot(own.model)

    def scaffolds(state: Any, received: Tensors, c: Tensors, steps: int) -> tuple[Tensors, Any]:
        own = client(received, steps, c_global=listed(c), iter_trainloader=iter(BATCHES))
        own.c_local = state or [torch.zeros_like(each) for each in c.values()]
        own.set_parameters, own.package = lambda package: None, lambda: None
        own.get_data_batch = lambda: scaffold.SCAFFOLDClient.get_data_batch(own)
        own.train_with_eval = lambda: scaffold.SCAFFOLDClient.fit(own)
        scaffold.SCAFFOLDClient.train(own, {"regular_model_params": received})
        return snapshot(own.model), own.c_local

    base.FedAvgServer.package = lambda self, client_id: {}
    base.FedAvgServer.aggregate_client_updates = lambda self, packages: None

    def dynamic(state: Any, received: Tensors, _: Tensors, steps: int) -> tuple[Tensors, Any]:
        keeper = server.FedDynServer.__new__(server.FedDynServer)
        keeper.public_model_params = OrderedDict(received)
        keeper.nabla = torch.zeros(1, sum(t.numel() for t in received.values()))
        if state is not None:
            keeper.nabla = state.clone()
        own = client(received, steps, delta=keeper.package(0)["local_dual_correction"])
        dyn.FedDynClient.fit(own)
        change = OrderedDict((n, received[n] - t) for n, t in snapshot(own.model).items())
        keeper.aggregate_client_updates(OrderedDict({0: {"model_params_diff": change}}))
        return snapshot(own.model), keeper.nabla

    def owns(state: Any, received: Tensors, _: Tensors, steps: int) -> tuple[Tensors, Any]:
        model = Network(state or received)
        own = client(received, steps, pers_model=model, global_params=received)
        own.optimizer.add_param_group({"params": model.parameters()})
        ditto.DittoClient.fit(own)
        return snapshot(model), snapshot(model)

    fedavg.FedAvgClient.__init__ = lambda self, **own: vars(self).update(own)

    def calibrated(own: SimpleNamespace) -> None:
        data = SimpleNamespace(targets=TARGETS.numpy(), classes=range(CLASSES))
        indices = [{"train": np.arange(len(TARGETS))}]
        made = fedlc.FedLCClient(
            data_indices=indices, dataset=data, device="cpu", args=own.args, client_id=0
        )
        own.criterion = made.criterion
        fedprox.FedProxClient.fit(own)  # with mu = 0, the loop of its FedAvg

    def without_pull(own: SimpleNamespace) -> None:
        own.args.fedprox.mu = 0.0
        calibrated(own)

    name, prefix = "FL-bench", "src/client/"
    yield theirs(name, "fedprox", plain(fedprox.FedProxClient.fit), f"{prefix}fedprox.py", mu=MU)
    yield theirs(name, "moon", moons, f"{prefix}moon.py", mu=MU, temperature=TAU)
    yield theirs(name, "scaffold", scaffolds, f"{prefix}scaffold.py")
    yield theirs(name, "feddyn", dynamic, f"{prefix}feddyn.py", "src/server/feddyn.py", alpha=ALPHA)
    yield theirs(name, "fedlc", plain(without_pull), f"{prefix}fedlc.py")
    yield theirs(name, "fedbabu", plain(fedbabu.FedBabuClient.fit), f"{prefix}fedbabu.py")
    yield Theirs(name, "ditto", (f"{prefix}ditto.py",), owns, OwnOfDitto(MU))


def pfllib(folder: Path) -> Iterator[Theirs]:
    from flcore.clients import (
        clientbabu,
        clientbase,
        clientditto,
        clientdyn,
        clientlc,
        clientmoon,
        clientntd,
        clientprox,
    )
    from flcore.clients import clientscaffold as scaffold
    from flcore.optimizers import fedoptimizer
    from flcore.servers import serverbase, serverlc

    def client(weights: Tensors, steps: int, **own: Any) -> SimpleNamespace:
        model = Network(weights)
        return SimpleNamespace(
            model=model, load_train_data=lambda: BATCHES, train_slow=False, local_epochs=steps,
            device="cpu", loss=nn.CrossEntropyLoss(), optimizer=sgd(model), num_classes=CLASSES,
            learning_rate_decay=False, learning_rate=LR,
            train_time_cost={"num_rounds": 0, "total_cost": 0.0}, **own,
        )  # fmt: skip

    def proximal(state: Any, received: Tensors, _: Tensors, steps: int) -> tuple[Tensors, Any]:
        own = client(received, steps, global_params=listed(received))
        own.optimizer = fedoptimizer.PerturbedGradientDescent(own.model.parameters(), LR, MU)
        clientprox.clientProx.train(own)
        return snapshot(own.model), None

    def moons(state: Any, received: Tensors, _: Tensors, steps: int) -> tuple[Tensors, Any]:
        old = Network(state or received)
        own = client(received, steps, mu=MU, tau=TAU, global_model=Network(received), old_model=old)
        clientmoon.clientMOON.train(own)
        return snapshot(own.model), snapshot(own.old_model)

    def scaffolds(state: Any, received: Tensors, c: Tensors, steps: int) -> tuple[Tensors, Any]:
        own = client(received, steps, global_c=listed(c), global_model=Network(received))
        own.client_c = state or [torch.zeros_like(each) for each in c.values()]
        own.optimizer = fedoptimizer.SCAFFOLDOptimizer(own.model.parameters(), LR)
        own.update_yc = lambda epochs: scaffold.clientSCAFFOLD.update_yc(own, epochs)
        scaffold.clientSCAFFOLD.train(own)
        return snapshot(own.model), [each.detach() for each in own.client_c]

    def dynamic(state: Any, received: Tensors, _: Tensors, steps: int) -> tuple[Tensors, Any]:
        vector = clientdyn.model_parameter_vector(Network(received)).detach()
        old = torch.zeros_like(vector) if state is None else state
        own = client(received, steps, alpha=ALPHA, global_model_vector=vector, old_grad=old)
        clientdyn.clientDyn.train(own)
        return snapshot(own.model), own.old_grad

    def distilled(state: Any, received: Tensors, _: Tensors, steps: int) -> tuple[Tensors, Any]:
        kl = nn.KLDivLoss(reduction="batchmean")
        own = client(received, steps, beta=MU, tau=TAU, KLDiv=kl)
        own.set_parameters = lambda model: clientntd.clientNTD.set_parameters(own, model)
        own.set_parameters(Network(received))
        own._ntd_loss = lambda *given: clientntd.clientNTD._ntd_loss(own, *given)
        clientntd.clientNTD.train(own)
        return snapshot(own.model), None

    def everybody(self: Any, *_: Any) -> None:
        self.clients = [
            SimpleNamespace(sample_per_class=torch.bincount(torch.tensor(held), minlength=CLASSES))
            for held in LABELS
        ]
        self.join_ratio = self.num_clients = 1

    serverbase.Server.__init__ = everybody
    serverbase.Server.set_slow_clients = lambda self: None
    serverbase.Server.set_clients = lambda self, kind: None

    def calibrated(state: Any, received: Tensors, _: Tensors, steps: int) -> tuple[Tensors, Any]:
        model = SimpleNamespace(head=Network(received).classifier)
        args = SimpleNamespace(
            model=model, num_classes=CLASSES, device="cpu", tau=1.0, batch_size=len(TARGETS)
        )
        made = serverlc.FedLC(args, 0)
        own = client(received, steps, calibration=made.clients[CLIENT].calibration)
        clientlc.clientLC.train(own)
        return snapshot(own.model), None

    def frozen_head(state: Any, received: Tensors, _: Tensors, steps: int) -> tuple[Tensors, Any]:
        own = client(received, steps)
        parts = SimpleNamespace(head=own.model.classifier)
        clientbase.Client.__init__ = lambda self, *given, **more: setattr(self, "model", parts)
        clientbabu.clientBABU(SimpleNamespace(fine_tuning_epochs=0), 0, 0, 0)  # freezes the head
        clientbabu.clientBABU.train(own)
        return snapshot(own.model), None

    def owns(state: Any, received: Tensors, _: Tensors, steps: int) -> tuple[Tensors, Any]:
        model = Network(state or received)
        own = client(received, steps, model_per=model, plocal_epochs=steps)
        own.optimizer_per = fedoptimizer.PerturbedGradientDescent(model.parameters(), LR, MU)
        clientditto.clientDitto.ptrain(own)  # which their server calls before `train`
        return snapshot(model), snapshot(model)

    name, prefix = "PFLlib", "system/flcore/clients/client"
    optimizers = "system/flcore/optimizers/fedoptimizer.py"
    yield theirs(name, "fedprox", proximal, f"{prefix}prox.py", optimizers, mu=MU)
    yield theirs(name, "moon", moons, f"{prefix}moon.py", mu=MU, temperature=TAU)
    yield theirs(name, "scaffold", scaffolds, f"{prefix}scaffold.py", optimizers)
    yield theirs(name, "feddyn", dynamic, f"{prefix}dyn.py", alpha=ALPHA)
    yield theirs(name, "fedntd", distilled, f"{prefix}ntd.py", mu=MU, temperature=TAU)
    yield theirs(name, "fedlc", calibrated, f"{prefix}lc.py", "system/flcore/servers/serverlc.py")
    yield theirs(name, "fedbabu", frozen_head, f"{prefix}babu.py")
    yield Theirs(name, "ditto", (f"{prefix}ditto.py", optimizers), owns, OwnOfDitto(MU))


def fluke(folder: Path) -> Iterator[Theirs]:
    from fluke import client as base
    from fluke.algorithms import ditto, fedbabu, feddyn, fedlc, fedprox, fedrs, fedsam, scaffold
    from fluke.algorithms import moon as contrast

    idle = SimpleNamespace(step=lambda: None, get_last_lr=lambda: [LR])

    def client(weights: Tensors, steps: int, **own: Any) -> SimpleNamespace:
        model = Network(weights)
        fields = {"loss_fn": F.cross_entropy, "local_epochs": steps, **own.pop("fields", {})}
        return SimpleNamespace(
            model=model, train_set=BATCHES, device="cpu", optimizer=sgd(model), scheduler=idle,
            hyper_params=SimpleNamespace(**fields), _clip_grads=lambda model: None, **own,
        )  # fmt: skip

    def proximal(state: Any, received: Tensors, _: Tensors, steps: int) -> tuple[Tensors, Any]:
        own = client(received, steps, fields={"mu": MU})
        own._proximal_loss = lambda *models: fedprox.FedProxClient._proximal_loss(own, *models)
        fedprox.FedProxClient.fit(own)
        return snapshot(own.model), None

    def moons(state: Any, received: Tensors, _: Tensors, steps: int) -> tuple[Tensors, Any]:
        models = {"server_model": Network(received), "prev_model": Network(state or received)}
        own = client(received, steps, fields={"mu": MU, "tau": TAU}, **models)
        contrast.MOONClient.fit(own)
        return snapshot(own.model), snapshot(own.model)

    def scaffolds(state: Any, received: Tensors, c: Tensors, steps: int) -> tuple[Tensors, Any]:
        own = client(received, steps, server_control=c, server_model=received)
        own.control = state or {name: torch.zeros_like(each) for name, each in c.items()}
        scaffold.SCAFFOLDClient.fit(own)
        return snapshot(own.model), own.control

    def dynamic(state: Any, received: Tensors, _: Tensors, steps: int) -> tuple[Tensors, Any]:
        kept = torch.zeros(sum(t.numel() for t in received.values())) if state is None else state
        own = client(received, steps, fields={"alpha": ALPHA}, weight=1.0, weight_decay=0.0)
        own.prev_grads, own.optimizer = kept.clone(), None
        own._optimizer_cfg = lambda model, weight_decay: (sgd(model, weight_decay), idle)
        feddyn.FedDynClient.fit(own)
        return snapshot(own.model), own.prev_grads

    def flat(state: Any, received: Tensors, _: Tensors, steps: int) -> tuple[Tensors, Any]:
        own = client(received, steps, fields={"rho": MU})
        own.optimizer = fedsam.SAMOptimizer(own.model.parameters(), rho=MU, lr=LR)
        own._get_closure = lambda *given: fedsam.FedSAMClient._get_closure(own, *given)
        fedsam.FedSAMClient.fit(own)
        return snapshot(own.model), None

    def by_counts(kind: Callable[..., Any], **fields: Any) -> Visit:
        """Methods that are a loss: it is made in the client's constructor."""
        made: dict[str, Any] = {}
        data = SimpleNamespace(tensors=(IMAGES, TARGETS), num_labels=CLASSES)

        def visit(state: Any, received: Tensors, _: Tensors, steps: int) -> tuple[Tensors, Any]:
            keep = base.Client.__init__
            base.Client.__init__ = lambda self, **given: made.update(given)
            kind.hyper_params = {}
            kind(0, data, data, None, None, steps, **fields)
            base.Client.__init__ = keep
            own = client(received, steps, fields={"loss_fn": made["loss_fn"], "mu": 0.0})
            own._proximal_loss = lambda *models: 0.0
            fedprox.FedProxClient.fit(own)  # with mu = 0, the loop of its FedAvg
            return snapshot(own.model), None

        return visit

    def frozen_head(state: Any, received: Tensors, _: Tensors, steps: int) -> tuple[Tensors, Any]:
        own, sent = client(received, steps), SimpleNamespace(payload=Network(received).body)
        channel = SimpleNamespace(receive=lambda *given, **more: sent)
        parts = SimpleNamespace(encoder=own.model.body, head=own.model.classifier)
        fedbabu.FedBABUClient.receive_model(SimpleNamespace(model=parts, channel=channel, index=0))
        base.Client.fit(own)
        return snapshot(own.model), None

    def owns(state: Any, received: Tensors, _: Tensors, steps: int) -> tuple[Tensors, Any]:
        model = Network(state or received)
        own = client(received, steps, fields={"tau": steps}, personalized_model=model)
        own.pers_optimizer = ditto.PerturbedGradientDescent(model.parameters(), LR, MU)
        own.pers_scheduler = idle
        ditto.DittoClient.fit(own)
        return snapshot(model), snapshot(model)

    name, prefix = "fluke", "fluke/algorithms/"
    yield theirs(name, "fedprox", proximal, f"{prefix}fedprox.py", mu=MU)
    yield theirs(name, "moon", moons, f"{prefix}moon.py", mu=MU, temperature=TAU)
    yield theirs(name, "scaffold", scaffolds, f"{prefix}scaffold.py")
    yield theirs(name, "feddyn", dynamic, f"{prefix}feddyn.py", alpha=ALPHA)
    yield theirs(name, "fedlc", by_counts(fedlc.FedLCClient, tau=1.0), f"{prefix}fedlc.py")
    yield theirs(
        name,
        "fedrs",
        by_counts(fedrs.FedRSClient, alpha=ALPHA, count_as_missing=0),
        f"{prefix}fedrs.py",
        alpha=ALPHA,
        scale="missing",
    )
    yield theirs(name, "fedsam", flat, f"{prefix}fedsam.py", rho=MU)
    yield theirs(name, "fedbabu", frozen_head, f"{prefix}fedbabu.py")
    yield Theirs(name, "ditto", (f"{prefix}ditto.py",), owns, OwnOfDitto(MU))


def flower(folder: Path) -> Iterator[Theirs]:
    sys.path[:0] = [str(folder / part) for part in ("fedprox", "moon", "niid_bench")]
    from fedprox import model as prox
    from moon import models as contrast
    from niid_bench import client_scaffold as scaffold
    from niid_bench import models as niid

    def proximal(state: Any, received: Tensors, _: Tensors, steps: int) -> tuple[Tensors, Any]:
        model = Network(received)
        batch = {"image": IMAGES, "label": TARGETS}
        prox.train(model, [batch], "cpu", steps, LR, MU)
        return snapshot(model), None

    def proximal_too(state: Any, received: Tensors, _: Tensors, steps: int) -> tuple[Tensors, Any]:
        model = Network(received)
        niid.train_fedprox(model, BATCHES, "cpu", steps, MU, LR, 0.0, 0.0)
        return snapshot(model), None

    def moons(state: Any, received: Tensors, _: Tensors, steps: int) -> tuple[Tensors, Any]:
        model, old = Triple(received), Triple(state or received)
        contrast.compute_accuracy = lambda *args, **kwargs: (0.0, 0.0)
        contrast.train_moon(model, Triple(received), old, BATCHES, steps, LR, MU, TAU)
        return snapshot(model), snapshot(model)

    def scaffolds(state: Any, received: Tensors, c: Tensors, steps: int) -> tuple[Tensors, Any]:
        model, place = Network(received), Path(tempfile.mkdtemp())
        if state is not None:
            torch.save(state, place / "client_cv_0.pt")
        own = SimpleNamespace(
            net=model, set_parameters=lambda parameters: None, trainloader=Batches(), device="cpu",
            get_parameters=lambda config: [t.numpy() for t in snapshot(model).values()],
            num_epochs=steps, learning_rate=LR, momentum=0.0, weight_decay=0.0, dir=place, cid=0,
        )  # fmt: skip
        sent = [t.numpy() for t in (*received.values(), *c.values())]
        scaffold.FlowerClientScaffold.fit(own, sent, {})
        return snapshot(model), own.client_cv

    name = "Flower baselines"
    yield theirs(
        name, "fedprox", proximal, "baselines/fedprox/fedprox/model.py", mu=MU, decay=0.001
    )
    yield theirs(name, "fedprox", proximal_too, "baselines/niid_bench/niid_bench/models.py", mu=MU)
    yield theirs(
        name,
        "moon",
        moons,
        "baselines/moon/moon/models.py",
        mu=MU,
        temperature=TAU,
        momentum=0.9,
        decay=1e-5,
    )
    yield theirs(name, "scaffold", scaffolds, "baselines/niid_bench/niid_bench/client_scaffold.py")


class Batches(list):
    dataset = TARGETS

    def __init__(self) -> None:
        super().__init__(BATCHES)


def moon(folder: Path) -> Iterator[Theirs]:
    import main as authors

    authors.logger = logging.getLogger()

    def unmeasured(*args: Any, get_confusion_matrix: bool = False, **kwargs: Any) -> Any:
        return (0.0, None, 0.0) if get_confusion_matrix else (0.0, 0.0)

    authors.compute_accuracy = unmeasured

    def visit(state: Any, received: Tensors, _: Tensors, steps: int) -> tuple[Tensors, Any]:
        model, old = Triple(received), Triple(state or received)
        authors.train_net_fedcon(
            0, model, Triple(received), [old], BATCHES, BATCHES, steps, LR, "sgd", MU, TAU,
            SimpleNamespace(reg=0.0), 1,
        )  # fmt: skip
        return snapshot(model), snapshot(model)

    yield theirs("the authors", "moon", visit, "main.py", mu=MU, temperature=TAU, momentum=0.9)
    del sys.modules["main"]


def feddyn(folder: Path) -> Iterator[Theirs]:
    sys.meta_path.insert(0, Stubs(["LEAF"]))
    import utils_general as authors

    def visit(state: Any, received: Tensors, _: Tensors, steps: int) -> tuple[Tensors, Any]:
        model = Network(received)
        start = torch.cat([t.flatten() for t in received.values()])
        drift = torch.zeros_like(start) if state is None else state
        authors.Dataset = lambda x, y, **_: torch.utils.data.TensorDataset(x, y)
        authors.train_feddyn_mdl(
            model, lambda: Network(received), ALPHA, start, drift, IMAGES, TARGETS, LR,
            len(TARGETS), steps, 1000, 0.0, "",
        )  # fmt: skip
        end = torch.cat([t.flatten() for t in snapshot(model).values()])
        return snapshot(model), drift + end - start

    yield theirs("the authors", "feddyn", visit, "utils_general.py", alpha=ALPHA)
