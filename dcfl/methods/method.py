"""What a federated method is: fields, hooks, and the rules for what it sends."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from dcfl.client import Batch, Client
from dcfl.errors import ConfigError
from dcfl.local_training import LocalTraining
from dcfl.messages import ClientUpdate, Tensors
from dcfl.models.output import Embedding, Output
from dcfl.settings import Settings
from dcfl.tensors import RunningMean, clip_share


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


Objective: TypeAlias = Callable[[Batch], Tensor]
LONGEST_METHOD_NAME = 50  # characters
PLAIN_NAME = re.compile(rf"\w[\w.-]{{0,{LONGEST_METHOD_NAME - 1}}}")


@dataclass(frozen=True)
class Cost:
    """The cost of a step and a round. The defaults are FedAvg's.

    Sizes are formulas over `weights` (bytes of the model), `parameters` (bytes of its parameters),
    `classes`, `d` (the width of the embedding) and `cohort` (the clients of a round). A test
    measures all of them.
    """

    forwards: int = 1  # per step, of any model
    backwards: int = 1
    copies: int = 0  # of the model during training, besides the trained and the received weights
    passes: int = 0  # over the client's data after training, without gradients
    up: str = "0"  # bytes sent in addition to the weights
    down: str = "0"
    kept: str = "0"  # bytes that a client keeps between its rounds


@dataclass(frozen=True)
class Method(Settings):
    """A federated method; derive your own as a frozen dataclass. The defaults are FedAvg.

    Its fields are hyper-parameters; the hooks it overrides are the algorithm. Store nothing about a
    run on `self`.

    There are five hooks, all optional: `objective` and `gradient` shape a step, `upload` and
    `remember` end a client's round, `merge` combines the uploads on the server. A method whose
    uploads are large defines `merge_mean` instead of `merge`, if their mean is all it needs.

    A method with an upload also sets the rules for it: `upload_like`, `check_upload` and `fitted`
    guard `merge` against clients that cannot be trusted, `upload_sensitivity` and `clip_upload`
    let [privacy] protect it, and `flip_upload` lets attackers forge it.

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
    neutral: ClassVar[Mapping[str, object]] = {}  # field values that turn it into FedAvg
    published: ClassVar[Mapping[str, Mapping[str, float]]] = {}  # the DCFL paper's, by data set

    @classmethod
    def for_dataset(cls, dataset: str) -> Self:
        """The method with the DCFL paper's values for this data set, or the defaults."""
        return cls(**cls.published.get(dataset, {}))

    def __init_subclass__(cls) -> None:
        if "name" not in cls.__dict__:
            cls.name = cls.__name__.lower()

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

    def gradient(self, client: Client, objective: Objective, batch: Batch) -> Tensor:
        """Leave the step's gradient in the parameters, scaled by `client.scaler`, and return the
        loss."""
        loss = objective(batch)
        client.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        return loss

    def embedding_of(self, output: Output) -> Tensor:
        """What terms on embeddings see of a model's output."""
        return output.z()

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

    # The rules for an upload. Methods that send only weights need none of them.

    def upload_like(self, parameters: Tensors, classes: int, width: int) -> Tensors | None:
        """Tensors with the names, shapes and dtypes that `upload` returns, for the server to check;
        None accepts anything. `width` is that of `embedding_of`."""
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

    def flip_upload(self, upload: Tensors, strength: float) -> Tensors:
        """The upload that an attacker sends with attack.kind = "prototype-flip". It must pass
        `check_upload`. Methods without this hook refuse the attack."""
        return upload


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
