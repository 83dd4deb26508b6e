"""A model with a side head has two embeddings, and both are looked at."""

from pathlib import Path

import torch

from dcfl.analysis.analysis_page import claim
from dcfl.analysis.findings import analyse_runs
from dcfl.analysis.similarity import measure_similarity
from dcfl.data import load_dataset
from dcfl.runs.model_file import load_model
from tests.analysis.trained import train


def test_both_embeddings_are_measured_and_compared_with_their_like(tmp_path: Path) -> None:
    runs = [
        train(tmp_path / name, **{"method.name": name, "model.head": "side32"})
        for name in ("fedproc", "dcfl-pw")
    ]
    analyses = analyse_runs(runs, clients=2)
    assert [(one.label, one.dimensions.width, one.drift is None) for one in analyses] == [
        ("fedproc", 128, False),
        ("fedproc, side head", 32, True),
        ("dcfl-pw", 128, False),
        ("dcfl-pw, side head", 32, True),
    ]
    assert analyses[0].accuracy == analyses[1].accuracy
    dataset = load_dataset(runs[1].experiment.data)
    output = load_model(runs[1].folder)(dataset.preparation.clean(dataset.test.pixels))
    assert output.projection is not None
    for analysis, z in zip(analyses[2:], (output.embedding, output.projection), strict=True):
        expected = measure_similarity(z.detach(), dataset.test.labels)
        torch.testing.assert_close(analysis.similarity.intra.mean, expected.intra.mean)
    first, second = claim(analyses)
    assert "side head" not in first
    assert "behind the side head" in second
