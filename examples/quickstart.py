"""Train DCFL-PW on the built-in digits, look at the numbers, take the model away."""

import torch

import dcfl


def main() -> None:
    result = dcfl.run(
        method={"name": "dcfl-pw", "mu": 0.1},
        data={"clients": 20, "alpha": 0.3},
        federation={"rounds": 20, "participation": 0.25, "seed": 0},
    )
    for row in result.rounds[::5]:
        print(f"round {row.round:2}: accuracy {row.accuracy:.1f} %")
    print(f"MAX {result.summary.max_accuracy:.1f}, EMA {result.summary.ema_accuracy:.1f}")

    model = dcfl.load_model(result.folder)
    with torch.no_grad():
        print(model(torch.zeros(1, 1, 8, 8)).logits.argmax(dim=1))


if __name__ == "__main__":
    main()
