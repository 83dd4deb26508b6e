"""Compare two methods on three seeds: is the difference more than chance?"""

import dcfl


def main() -> None:
    comparison = dcfl.compare(
        methods=["fedavg", "dcfl-pw"],
        seeds=[0, 1, 2],
        data={"clients": 10, "alpha": 0.1},
        federation={"rounds": 5, "participation": 0.5},
        parallel=1,  # in this process: such short runs gain nothing from others
    )
    for sentence in comparison.verdict:
        print(sentence)
    print(f"accuracy, round by round: {comparison.report}")


if __name__ == "__main__":
    main()
