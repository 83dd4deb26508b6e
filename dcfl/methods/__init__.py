"""Federated methods by name."""

from __future__ import annotations

from dcfl.methods.dcfl import DCFLPrototypeWise, DCFLSampleWise
from dcfl.methods.fedavg import FedAvg
from dcfl.methods.feddecorr import FedDecorr
from dcfl.methods.fedpcl import FedPCL
from dcfl.methods.fedproc import FedProc
from dcfl.methods.fedprox import FedProx
from dcfl.methods.fedrcl import FedRCL
from dcfl.methods.fedscl import FedSCL
from dcfl.methods.fedsol import FedSOL
from dcfl.methods.method import Cost, Method, Objective
from dcfl.methods.moon import MOON
from dcfl.methods.scaffold import Scaffold

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        FedAvg,
        FedProx,
        MOON,
        FedDecorr,
        FedProc,
        FedRCL,
        FedSOL,
        FedSCL,
        DCFLSampleWise,
        DCFLPrototypeWise,
        Scaffold,
        FedPCL,
    )
}

__all__ = ["METHODS", "Cost", "Method", "Objective"]
