"""Train a model, score it class by class, and score it again on images of your own."""

import numpy as np

import dcfl


def main() -> None:
    result = dcfl.run(method="dcfl-pw", federation={"rounds": 10})
    scores = dcfl.evaluate(result.folder)
    print(f"accuracy {scores.accuracy:.1f} %, AUC {scores.mean_auc:.3f}")
    for digit, recall in enumerate(scores.recall.tolist()):
        print(f"  {digit}: {recall:5.1f} % recognised")

    # Any arrays of the same shape and classes; here noise, on which the model can only guess.
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 20, (100, 8, 8, 1), dtype=np.uint8)
    labels = np.arange(100) % 10
    names = [str(digit) for digit in range(10)]
    noise = dcfl.Dataset.of(pictures, labels, test=0.5, class_names=names)
    print(f"accuracy on noise {dcfl.evaluate(result.folder, noise).accuracy:.1f} %")


if __name__ == "__main__":
    main()
