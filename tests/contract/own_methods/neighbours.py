"""What one client receives differs from what others do: each starts from a mixture of the shared
classifier and one of its own, which the server keeps for it (the skeleton of FedPAC and FedALA)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

import dcfl
from dcfl import Client


@dataclass(frozen=True)
class Neighbours(dcfl.Method):
    own_share: float = 0.5

    neutral: ClassVar = {"own_share": 0.0}

    def start(self, client: Client) -> dict[str, Tensor]:
        if not self.own_share:
            return {"classifier.bias": client.received["classifier.bias"]}
        mine = client.shared.get("bias", client.received["classifier.bias"])
        mixed = torch.lerp(client.received["classifier.bias"], mine, self.own_share)
        return {"classifier.bias": mixed}

    def upload(self, client: Client) -> dict[str, Tensor]:
        bias = client.model.get_parameter("classifier.bias").detach()
        return {"bias": bias.clone(), "client": torch.tensor(client.id)}

    def merge(
        self, shared: dict[str, Tensor], uploads: Sequence[dict[str, Tensor]], population: int
    ) -> dict[str, Tensor]:
        return {**shared, **{f"bias/{int(one['client'])}": one["bias"] for one in uploads}}

    def shared_for(self, shared: dict[str, Tensor], client: int) -> dict[str, Tensor]:
        return {"bias": shared[f"bias/{client}"]} if f"bias/{client}" in shared else {}
