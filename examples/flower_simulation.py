"""The same run in this process and on Flower's simulation: equal to the last bit.

Needs Ray: `pip install 'dcfl[flower]'`. `dcfl flower up` is for sites on other machines.
"""

import torch

import dcfl


def main() -> None:
    settings = {"data": {"clients": 4}, "federation": {"rounds": 2, "participation": 0.5}}
    here = dcfl.run(**settings)
    there = dcfl.run(engine={"name": "flower-simulation"}, **settings)
    print(f"accuracy here {here.summary.final_accuracy:.2f} %")
    print(f"accuracy on Flower {there.summary.final_accuracy:.2f} %")

    one, other = (dcfl.load_model(run.folder).state_dict() for run in (here, there))
    print("equal to the last bit:", all(torch.equal(one[name], other[name]) for name in one))


if __name__ == "__main__":
    main()
