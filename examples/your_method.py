"""A method of one's own: FedAvg with a penalty on overconfident predictions."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import nll_loss

import dcfl
from dcfl import Batch, Client, Objective


@dataclass(frozen=True)
class ConfidencePenalty(dcfl.Method):
    mu: float = 0.1

    def objective(self, client: Client) -> Objective:
        def loss(batch: Batch) -> Tensor:
            log_p = client.model(batch.images).logits.log_softmax(dim=1)
            entropy = -(log_p.exp() * log_p).sum(dim=1).mean()
            return nll_loss(log_p, batch.labels) - self.mu * entropy

        return loss


if __name__ == "__main__":
    result = dcfl.run(method=ConfidencePenalty(), federation={"rounds": 20})
    print(f"accuracy {result.summary.final_accuracy:.1f} %, see {result.folder}/report.html")
