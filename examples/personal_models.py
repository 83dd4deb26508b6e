"""A model for every client: Ditto trains one beside the shared one, and both are scored."""

import dcfl

if __name__ == "__main__":
    result = dcfl.run(
        method="ditto",
        data={"clients": 10, "alpha": 0.1},
        federation={"rounds": 10, "participation": 1.0},
        engine={"workers": 1},  # in this process: a small run gains little from others
    )
    summary = result.summary
    print(f"accuracy of the shared model, client by client: {summary.client_accuracy:.1f} %")
    print(f"accuracy of the clients' own models: {summary.personal_accuracy:.1f} %")
    print(f"the worst tenth of those: {summary.worst_decile_personal_accuracy:.1f} %")
