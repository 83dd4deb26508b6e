"""A network of one's own: `dcfl run --model-file your_model.py`, or `python your_model.py`."""

from torch import nn

import dcfl


def small_net(channels: int, size: int, classes: int) -> nn.Module:
    """Two convolutions and a classifier; what enters the classifier is the embedding."""
    return nn.Sequential(
        nn.Conv2d(channels, 16, kernel_size=3, stride=2, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, classes),
    )


if __name__ == "__main__":
    model = dcfl.adapt(small_net(channels=1, size=8, classes=10), stages=("1", "4"))
    result = dcfl.run(model=model, federation={"rounds": 20})
    print(f"accuracy {result.summary.final_accuracy:.1f} %, see {result.folder}/report.html")
