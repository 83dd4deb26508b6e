"""How does a lead depend on how different the clients are? Curves over alpha, on one page."""

import dcfl


def main() -> None:
    study = dcfl.compare(
        methods=["fedavg", "scaffold"],
        over={"data.alpha": [0.1, 1.0]},
        seeds=[0, 1, 2],
        data={"clients": 10},
        federation={"rounds": 5, "participation": 0.5},
        parallel=1,  # in this process: such short runs gain nothing from others
    )
    for sentence in study.verdict:
        print(sentence)
    print(f"accuracy over alpha: {study.report}")


if __name__ == "__main__":
    main()
