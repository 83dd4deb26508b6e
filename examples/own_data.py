"""Data of one's own that are not images: sensor series from eight sites, one frequency a class."""

import numpy as np

import dcfl


def main() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(400) % 4
    angles = (1 + labels)[:, None] * np.linspace(0, 12, 50) + rng.uniform(0, 6, (400, 1))
    series = np.stack([np.sin(angles), np.cos(angles)], axis=1) + rng.normal(size=(400, 2, 50))
    data = dcfl.Dataset.of(series, labels, sites=np.arange(400) % 8, name="sensors")
    print(data)
    result = dcfl.run(
        dataset=data,
        method="fedavg",
        model="cnn1d",
        federation={"rounds": 10, "participation": 1.0},
        training={"lr": 0.1},
    )
    scores = dcfl.evaluate(result.folder)  # the run keeps its data
    print(f"accuracy {scores.accuracy:.1f} % on {scores.images} test series")


if __name__ == "__main__":
    main()
