"""FedBABU (Oh, Kim and Yun, ICLR 2022), as a user would write it: clients train the body alone. The
classifier stays as it was initialised, until `dcfl evaluate --fine-tune` trains it."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

import dcfl
from dcfl import Batch, Client, Objective


@dataclass(frozen=True)
class MyFedBABU(dcfl.Method):
    neutral: ClassVar = None

    def gradient(self, client: Client, objective: Objective, batch: Batch) -> Tensor:
        loss = super().gradient(client, objective, batch)
        for live in client.model.get_submodule("classifier").parameters():
            live.grad = None  # not zero, which weight decay and momentum would move
        return loss
