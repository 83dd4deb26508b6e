"""Numbers and models of one's own: how far clients move in a round, and the model of each round."""

from dataclasses import dataclass

from torch import Tensor

import dcfl
from dcfl import Client


@dataclass(frozen=True)
class Watched(dcfl.Method):
    """FedAvg that says how far each client moved."""

    def remember(self, client: Client) -> dict[str, Tensor]:
        moved = [live.detach() - client.received[name] for name, live in client.trainable()]
        client.log("moved", sum(one.square().sum() for one in moved) ** 0.5)
        return {}


if __name__ == "__main__":
    result = dcfl.run(
        method=Watched(),
        federation={"rounds": 10},
        output={"keep_every": 1},
    )
    run = dcfl.open_run(result.folder)
    for row in run.rounds:
        print(f"round {row.round}: accuracy {row.accuracy:.1f} %, moved {row.logged['moved']:.3f}")
    features, labels = run.embeddings(round=1)
    print(f"after round 1: {features.shape[0]} test images, {features.shape[1]} features each")
