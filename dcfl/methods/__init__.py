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
from dcfl.methods.method import Cost, Method, Objective, ServerStep
from dcfl.methods.moon import MOON
from dcfl.methods.personal.apfl import APFL
from dcfl.methods.personal.ditto import Ditto
from dcfl.methods.personal.fedala import FedALA
from dcfl.methods.personal.fedbabu import FedBABU
from dcfl.methods.personal.fedpac import FedPAC
from dcfl.methods.personal.fedproto import FedProto
from dcfl.methods.personal.fedrep import FedBN, FedPer, FedRep, LGFedAvg
from dcfl.methods.personal.fedrod import FedRoD
from dcfl.methods.personal.ifca import IFCA
from dcfl.methods.personal.per_fedavg import PerFedAvg
from dcfl.methods.personal.pfedme import PFedMe
from dcfl.methods.scaffold import Scaffold
from dcfl.methods.zoo.ccvr import CCVR
from dcfl.methods.zoo.drift import FedDC, FedSpeed
from dcfl.methods.zoo.fedalign import FedAlign
from dcfl.methods.zoo.fedcm import FedCM
from dcfl.methods.zoo.feddyn import FedDyn
from dcfl.methods.zoo.fedetf import FedETF
from dcfl.methods.zoo.fedexp import FedDisco, FedExP
from dcfl.methods.zoo.fedgen import FedGen
from dcfl.methods.zoo.fedlc import FedLC, FedRS
from dcfl.methods.zoo.fedma import FedMA
from dcfl.methods.zoo.fedntd import FedNTD
from dcfl.methods.zoo.fedsam import FedASAM, FedSAM
from dcfl.methods.zoo.q_fedavg import QFedAvg

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
        FedNTD,
        FedLC,
        FedRS,
        FedSAM,
        FedASAM,
        FedDyn,
        FedExP,
        FedDisco,
        FedAlign,
        FedSpeed,
        FedCM,
        FedDC,
        FedETF,
        QFedAvg,
        CCVR,
        FedMA,
        Ditto,
        FedBABU,
        APFL,
        FedBN,
        FedPer,
        FedRep,
        LGFedAvg,
        PFedMe,
        PerFedAvg,
        FedRoD,
        FedALA,
        IFCA,
        FedProto,
        FedPAC,
        FedGen,
    )
}

__all__ = ["METHODS", "Cost", "Method", "Objective", "ServerStep"]
