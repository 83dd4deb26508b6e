"""FedExP (Jhunjhunwala, Wang and Joshi, ICLR 2023), as a user would write it.

eta = max(1, sum_i |d_i|^2 / (2 M (|mean d|^2 + epsilon))), and the server moves by eta * mean d.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import dcfl


@dataclass(frozen=True)
class MyFedExP(dcfl.Method):
    epsilon: float = 1e-3

    neutral: ClassVar = None

    def server_step(self, step: dcfl.ServerStep) -> dcfl.ServerStep:
        length = sum(float(change.square().sum()) for change in step.direction.values())
        eta = max(1.0, step.mean_square / (2 * (length + self.epsilon)))
        return replace(step, direction={n: eta * change for n, change in step.direction.items()})
