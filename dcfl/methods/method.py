"""What a federated method is: fields, hooks, and the rules for what it sends."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import ClassVar, Literal, Self, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from dcfl.client import Batch, Client
from dcfl.errors import ConfigError
from dcfl.local_training import LocalTraining
from dcfl.messages import Broadcast, ClientUpdate, Tensors, private_and_rest
from dcfl.models.output import Embedding, Output
from dcfl.settings import Settings, key
from dcfl.system.processes import Terminated
from dcfl.tensors import RunningMean, clip_share, snapshot


@dataclass(frozen=True)
class MeanUpload:
    """All that `Method.merge_mean` learns of a round's uploads."""

    tensors: Tensors  # the means, float64; an integer tensor is the first client's
    clients: int  # how many uploads there were, at least one
    dtypes: Mapping[str, torch.dtype]  # of the tensors as clients sent them

    def cast(self, tensors: Tensors) -> dict[str, Tensor]:
        """Convert tensors named like those of the upload to the form in which clients sent them."""
        return {
            name: torch.empty_like(self.tensors[name], dtype=self.dtypes[name]).copy_(tensor)
            for name, tensor in tensors.items()
        }


class UploadsSoFar:
    """Adds up uploads as they come, in the memory of one of them in float64. Keeps none."""

    def __init__(self) -> None:
        self._mean, self._clients = RunningMean(), 0
        self._form: dict[str, tuple[torch.dtype, torch.Size]] = {}

    def add(self, upload: Tensors) -> None:
        """Add the next upload in client order, which decides the last bits."""
        form = {name: (tensor.dtype, tensor.shape) for name, tensor in upload.items()}
        if self._clients and form != self._form:
            raise ValueError(
                "uploads whose names, shapes or dtypes differ have no mean; "
                "with `upload_like` the server rejects the odd ones"
            )
        self._form = form
        self._mean.add(upload, 1.0)
        self._clients += 1

    def mean(self) -> MeanUpload:
        """The mean of all that were added; nothing may be added afterwards."""
        dtypes = {name: dtype for name, (dtype, _) in self._form.items()}
        return MeanUpload(self._mean.mean(), self._clients, dtypes)


def mean_of(uploads: Sequence[Tensors]) -> MeanUpload:
    so_far = UploadsSoFar()
    for upload in uploads:
        so_far.add(upload)
    return so_far.mean()


@dataclass(frozen=True)
class ServerStep:
    """The end of a round on the server, as `Method.server_step` gets it and, with other values of
    `direction`, `buffers`, `shared` and `kept`, returns it. Tensors must not be changed.

    `round`, counted from 1; `clients`, how many replies are in the mean; `population`, how many
    clients there are; `lr`, of the clients' first step; `weights`, the server's parameters before
    the step; `direction`, from those that were sent to the mean of the replies, float64; `buffers`,
    means of running statistics; `mean_square`, of the lengths of the clients' changes; `shared`,
    what clients receive next; `kept`, the method's own state, never sent.

    With `keeps_replies`: `replies`, each with `client`, `num_examples`, `weights` (the client's
    weights, not changes; buffers too) and `upload`; `shares`, their weights in the mean, which do
    not sum to 1: only ratios count.
    """

    round: int  # counted from 1
    clients: int  # whose replies are in the mean
    population: int  # clients in the federation
    lr: float  # of the clients' first step; with momentum, that of plain steps as long as theirs
    weights: Tensors  # the server's parameters before the step, without frozen and personal ones
    # From the weights that were sent to the mean of the replies, in float64. server.optimizer adds
    # it to `weights`, or makes of it what it makes of every direction.
    direction: Tensors
    buffers: Tensors  # the means of the replies' running statistics: the server's, as returned
    # The mean of |w_i - w_sent|^2 over the replies, with the weights that they have in the mean;
    # under a robust aggregation their median, which forged replies cannot push up.
    mean_square: float
    shared: Tensors  # what `merge` made of the uploads; what clients receive in the next round
    kept: Tensors  # what the method keeps on the server; empty at first, never sent
    replies: Sequence[ClientUpdate] = ()  # in client order, if the method `keeps_replies`
    shares: Sequence[float] = ()  # their weights in the mean, of which only the ratios count


Objective: TypeAlias = Callable[[Batch], Tensor]
LONGEST_METHOD_NAME = 50  # characters
PLAIN_NAME = re.compile(rf"\w[\w.-]{{0,{LONGEST_METHOD_NAME - 1}}}")


@dataclass(frozen=True)
class Cost:
    """The cost of a step and a round. The defaults are FedAvg's.

    Sizes are formulas over `weights` (bytes of the model), `parameters` (bytes of its parameters),
    `classes`, `d` (the width of the embedding, or of all levels together) and `cohort` (the clients
    of a round). A test measures all of them.
    """

    forwards: int = 1  # per step, of any model
    backwards: int = 1
    copies: int = 0  # of the model during training, besides the trained and the received weights
    passes: int = 0  # over the client's data after training, without gradients
    tuned: int = 0  # such passes with gradients
    up: str = "0"  # bytes sent in addition to the weights
    down: str = "0"
    kept: str = "0"  # bytes that a client keeps between its rounds

    @property
    def models(self) -> tuple[int, int]:
        """How many a client holds while it trains, with the one that it received, and how many it
        keeps between its rounds."""
        kept = re.findall(r"(?:(\d+) \* )?(?:weights|parameters)", self.kept)
        return 2 + self.copies, sum(int(times or 1) for times in kept)


@dataclass(frozen=True)
class Method(Settings):
    """A federated method; derive your own as a frozen dataclass. The defaults are FedAvg.

    Its fields are hyper-parameters; the hooks it overrides are the algorithm. Store nothing about a
    run on `self`.

    All hooks are optional. At the client, `start` says where training begins, `objective` and
    `gradient` shape a step, `upload` and `remember` end the round; `own_objective` and
    `own_weights` are for a model of the client's own. On the server, `merge` combines the uploads,
    `weigh` says what each reply counts in the mean, `server_step` moves the server's weights, and
    `shared_for` chooses what a client receives. A method whose uploads are large defines
    `merge_mean` instead of `merge`, if their mean is all it needs.

    A method with an upload also sets the rules for it: `upload_like`, `check_upload` and `fitted`
    guard `merge` against clients that cannot be trusted, `upload_sensitivity` and `clip_upload`
    let [privacy] protect it.

    Example:
        >>> from dataclasses import dataclass
        >>> import dcfl
        >>> @dataclass(frozen=True)
        ... class Smoothed(dcfl.Method):
        ...     def objective(self, client):
        ...         def loss(batch):
        ...             log_p = client.model(batch.images).logits.log_softmax(dim=1)
        ...             picked = log_p.gather(1, batch.labels[:, None])
        ...             return -(0.9 * picked.mean() + 0.1 * log_p.mean())
        ...
        ...         return loss
        >>> dcfl.run(method=Smoothed(), federation={"rounds": 1}).summary.method
        'smoothed'
    """

    table_name: ClassVar = "method"
    name: ClassVar[str]  # the key in METHODS; by default the class's name in lower case
    equation: ClassVar[str] = "L = L_CE"
    cost: ClassVar[Cost] = Cost()
    # Field values that turn it into FedAvg; None: none do.
    neutral: ClassVar[Mapping[str, object] | None] = {}
    # Numbers that `compare --tune` varies; by default those of `neutral`, else the first field.
    searched: ClassVar[Sequence[str]] = ()
    # False: what `server_step` returns must not pass through another server.optimizer than fedavg.
    any_optimizer: ClassVar[bool] = True
    # False: its `server_step` is for a mean of replies, not for FedNova's or a robust rule's.
    any_aggregation: ClassVar[bool] = True
    # Parts of the model that every client has for itself, named as in federation.personal.
    personal: ClassVar[Sequence[str]] = ()
    keeps_replies: ClassVar[bool] = False  # `server_step` sees all of them: memory for a cohort
    keeps_model: ClassVar[bool] = False  # the client's own model is the one that it has trained
    published: ClassVar[Mapping[str, Mapping[str, float]]] = {}  # the DCFL paper's, by data set

    @classmethod
    def for_dataset(cls, dataset: str) -> Self:
        """The method with the DCFL paper's values for this data set, or the defaults."""
        return cls(**cls.published.get(dataset, {}))

    def __init_subclass__(cls) -> None:
        if "name" not in cls.__dict__:
            cls.name = cls.__name__.lower()
        for name in public_functions(cls).difference(dir(Method)):
            if near := get_close_matches(name, public_functions(Method), 1, 0.8):
                raise ConfigError(
                    f"{cls.__name__}.{name}: did you mean the hook {near[0]}? Nobody calls {name}; "
                    f"begin its name with _ if it is a helper"
                )

    @classmethod
    def overrides(cls, hook: str) -> bool:
        """Whether this method defines the hook itself instead of using the default."""
        return getattr(cls, hook) is not getattr(Method, hook)

    @property
    def second_view(self) -> bool:
        """Whether batches carry a second augmented view of their images."""
        return False

    def objective(self, client: Client) -> Objective:
        """Called once per round: do set-up here and return the loss as a function of a batch."""

        def loss(batch: Batch) -> Tensor:
            return F.cross_entropy(client.model(batch.images).logits, batch.labels)

        return loss

    def start(self, client: Client) -> Tensors:
        """At the beginning of a client's round: the weights to train from, with the names of
        `client.received`, which still is what was sent; what is not named starts as received."""
        return {}

    def gradient(self, client: Client, objective: Objective, batch: Batch) -> Tensor:
        """Leave the step's gradient in the parameters, scaled by `client.scaler`, and return the
        loss."""
        loss = objective(batch)
        client.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        return loss

    def own_objective(self, client: Client) -> Objective:
        """For a model of every client's own beside the shared one: the loss of `client.own_model`
        as a function of a batch. Each batch then moves both models, first the shared one."""
        return self.objective(client)

    def own_weights(self, client: Client) -> Tensors:
        """After training: the client's own model, which it keeps, never sends, finds in
        `client.own` in its next round and is scored with; what is not named is the server's."""
        return snapshot(client.model if self.keeps_model else client.own_model, client.received)

    @property
    def has_own_model(self) -> bool:
        hooks = ("own_objective", "own_weights")
        return self.keeps_model or any(self.overrides(hook) for hook in hooks)

    @property
    def keeps_all(self) -> bool:
        """Whether the server keeps all replies until the round ends."""
        return self.overrides("weigh") or (self.keeps_replies and self.overrides("server_step"))

    @property
    def takes_stale(self) -> bool:
        """Whether a reply may be of a client that began from an older model than the others of its
        round. What is merged or weighed is usually of one model."""
        hooks = ("upload", "weigh", "server_step", "shared_for")
        return not any(self.overrides(hook) for hook in hooks)

    @property
    def adds_up(self) -> bool:
        """Whether `merge` makes of a single upload, the sum of all, what it makes of all of them:
        under server.secure nobody sees more. `merge_mean` needs no more in any case."""
        return not self.overrides("merge")

    def embedding_of(self, output: Output) -> Tensor:
        """What terms on embeddings see of a model's output."""
        return output.z()

    def levels_of(self, output: Output) -> list[Tensor]:
        """The embeddings that the term sees, one for each level of the network that it is on."""
        return [self.embedding_of(output)]

    def summed(self, output: Output) -> Tensor | None:
        """What `upload` sums up by class, beside the classes' counts: a vector for each image.
        None: no such sums are sent. `dcfl attack` asks what they tell."""
        return None

    def upload(self, client: Client) -> Tensors:
        """What to send in addition to the weights, after training."""
        return {}

    def remember(self, client: Client) -> Tensors:
        """What this client finds in `client.memory` in its next round."""
        return {}

    def merge(self, shared: Tensors, uploads: Sequence[Tensors], population: int) -> Tensors:
        """On the server: what every client finds in `client.shared` in the next round."""
        if not uploads or not self.overrides("merge_mean"):
            return shared
        return self.merge_mean(shared, mean_of(uploads), population)

    def merge_mean(self, shared: Tensors, uploads: MeanUpload, population: int) -> Tensors:
        """Define this instead of `merge` if the mean and the number of the uploads are enough: the
        server then adds them up as they arrive and keeps none. They must all have the same names,
        shapes and dtypes."""
        return shared

    def shared_for(self, shared: Tensors, client: int) -> Tensors:
        """On the server: what of all that is shared this client receives."""
        return shared

    def weigh(self, updates: Sequence[ClientUpdate], weights: Sequence[float]) -> Sequence[float]:
        """On the server: the weight of each reply in the mean, of which only the ratios count.
        `weights` are those of server.aggregation: ones, or numbers of images. The server then keeps
        all replies until the round ends."""
        return weights

    def server_step(self, step: ServerStep) -> ServerStep:
        """On the server, after `merge`: what becomes of the mean direction, of what is shared and
        of the method's own state, as `dataclasses.replace(step, direction=..., kept=...)`. Not
        called for a round that changes nothing because too few clients replied."""
        return step

    # The rules for an upload. Methods that send only weights need none of them.

    def upload_like(self, parameters: Tensors, classes: int, width: int) -> Tensors | None:
        """Tensors with the names, shapes and dtypes that `upload` returns, for the server to check;
        None accepts anything. `width` is that of `levels_of`, all levels together."""
        return None if self.overrides("upload") else {}

    def check_upload(self, update: ClientUpdate, training: LocalTraining) -> None:
        """On the server, before `merge`: raise ProtocolError for what no honest client would send.
        Names, shapes, dtypes and finiteness are already checked. With [privacy] the upload contains
        noise."""

    def fitted(self, robust: bool) -> Self:
        """This method with the fields that control `merge` resolved. If the server's aggregation is
        robust, a few forged uploads must not steer `merge` either."""
        return self

    def upload_sensitivity(self) -> Mapping[str, float] | None:
        """For each tensor of the upload, the largest L2 distance between what any two clients can
        send after `clip_upload`, whatever their data. [privacy] scales its noise by this, and
        refuses a method that returns None."""
        return None if self.overrides("upload") else {}

    def clip_upload(self, upload: Tensors) -> Tensors:
        """Bound one client's upload, in float64, so that `upload_sensitivity` holds; [privacy]
        calls it before it adds noise.

        By default each tensor is scaled down to an L2 norm of half its sensitivity, which always
        suffices: two such tensors are never further apart than the sensitivity.
        """
        longest = {name: far / 2 for name, far in (self.upload_sensitivity() or {}).items()}
        return {
            name: tensor * clip_share([tensor], longest[name]) for name, tensor in upload.items()
        }


def public_functions(cls: type[Method]) -> set[str]:
    """The names of those that a class defines itself."""
    return {name for name, value in vars(cls).items() if callable(value) and name[0] != "_"}


def addressed(broadcast: Broadcast, method: Method, client: int) -> Broadcast:
    """The message as one client gets it."""
    if not method.overrides("shared_for"):
        return broadcast
    try:
        private, rest = private_and_rest(broadcast.shared)
        return replace(broadcast, shared={**method.shared_for(rest, client), **private})
    except Terminated:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{method.name}: shared_for raised {type(error).__name__}: {error}"
        ) from error


def require_plain_name(name: object) -> None:
    """Restrict names of methods, which appear in folders, tables and command lines."""
    if not isinstance(name, str) or PLAIN_NAME.fullmatch(name) is None:
        raise ConfigError(
            f"{name!r} is no name for a method: it may have letters, digits, '-', '_' and '.', at "
            f"most {LONGEST_METHOD_NAME}, and begins with none of '-' and '.'"
        )


@dataclass(frozen=True)
class OnEmbeddings(Method):
    # The output of a side head (model.head = "side256"), or what the classifier sees. They are the
    # same in a model without such a head.
    embedding: Embedding = field(default="projection", kw_only=True)

    def embedding_of(self, output: Output) -> Tensor:
        return output.z(self.embedding)


Levels: TypeAlias = Literal["last", "all"] | tuple[int, ...]


@dataclass(frozen=True)
class OnLevels(OnEmbeddings):
    # Where in the network the term is, as a mean over these levels: "last" is the embedding; "all"
    # is the pooled output of every stage before its ReLU and before any head; [0, 2] are stages.
    levels: Levels = key("last", ge=0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.levels == ():
            raise ConfigError('method.levels = []: name stages, or take "all" or "last"')

    def levels_of(self, output: Output) -> list[Tensor]:
        if self.levels == "last":
            return [self.embedding_of(output)]
        stages = output.stages
        chosen = range(len(stages)) if self.levels == "all" else self.levels
        if any(level >= len(stages) for level in chosen):
            raise ConfigError(
                f"method.levels = {list(chosen)}, and the model has the levels "
                f"0 to {len(stages) - 1}"
            )
        return [stages[level] for level in chosen]

    def over_levels(self, output: Output, term: Callable[[Tensor], Tensor]) -> Tensor:
        """The mean of a term over the levels."""
        return torch.stack([term(level) for level in self.levels_of(output)]).mean()
