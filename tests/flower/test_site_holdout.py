"""What sites keep back from training, and what is chosen by it."""

from pathlib import Path
from typing import Any

from dcfl.data import DataSettings, load_dataset
from tests.data.scanners import CLASSES as SCANNED
from tests.data.scanners import SCANNERS, scanners
from tests.flower.sites_in_process import Sites, remote_experiment


def test_sites_keep_back_what_a_simulation_of_them_does(tmp_path: Path) -> None:
    """The best round and the end are chosen by groups that each site keeps back itself."""
    scanners(tmp_path / "sites", patients=10)
    folders = [tmp_path / "sites" / name for name in SCANNERS]
    changes: dict[str, Any] = {
        "data__holdout": 0.2,
        "data__clients": 3,
        "data__class_names": list(SCANNED),
    }
    changes |= {"output__keep_best": True, "federation__patience": 1, "federation__rounds": 3}
    settings = DataSettings(dataset=f"sites:{tmp_path / 'sites'}", image_size=8, holdout=0.2)
    kept_back = load_dataset(settings)
    sites = Sites(folders, ({}, {}, {}))
    run = sites.train(remote_experiment(tmp_path / "run", **changes))
    images = {site.client: site.images for site in run.rounds[-1].sites}
    assert images == dict(enumerate(kept_back.cell_sizes.sum(dim=1).tolist()))
    assert (run.folder / "best.safetensors").is_file()
    trained = {row.client: row.num_examples for row in run.clients if row.round == 1}
    assert kept_back.partition is not None
    assert trained == dict(enumerate(kept_back.partition.sizes.tolist()))
