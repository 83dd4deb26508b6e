"""FedAvg: cross-entropy on every client, the mean of their weights on the server.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017. L = L_CE. The reference for every comparison.
"""

from __future__ import annotations

from dataclasses import dataclass

from dcfl.methods.method import Method


@dataclass(frozen=True)
class FedAvg(Method):
    """Cross-entropy on every client, the mean of the weights on the server."""
