"""Federated methods by name."""

from __future__ import annotations

from dcfl.methods.dcfl import DCFLPrototypeWise, DCFLSampleWise
from dcfl.methods.fedavg import FedAvg
from dcfl.methods.method import Cost, Method, Objective

METHODS: dict[str, type[Method]] = {
    method.name: method for method in (FedAvg, DCFLSampleWise, DCFLPrototypeWise)
}

__all__ = ["METHODS", "Cost", "Method", "Objective"]
