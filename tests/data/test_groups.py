"""Pictures of one patient are never on both sides: of the test split, of client splits, of what is
held out."""

import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dcfl.cli.cards import dataset_card
from dcfl.data import Dataset, DataSettings, Images, Preparation, load_dataset
from dcfl.data.catalogue import load_own_site
from dcfl.data.dataset_summary import summarise_dataset
from dcfl.data.splits.grouping import PictureFile, divide
from dcfl.data.splits.partition import LEFT_TO_CHANCE, SCHEMES
from dcfl.data.to_score import Wanted, own_sites
from dcfl.errors import ConfigError, DatasetCorrupt, DCFLError, PartitionError
from dcfl.experiment import Experiment
from dcfl.runs.prepare import prepare
from tests.data.pictures import class_folders, save

# A picture as (site, label, number of its patient; 0: of nobody).
PICTURES = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(0, 9)), min_size=1, max_size=80
)


def pictures(drawn: list[tuple[int, int, int]]) -> list[PictureFile]:
    return sorted(
        PictureFile(site, label, "either", Path(f"{number}.png"), f"p{patient}" if patient else "")
        for number, (site, label, patient) in enumerate(drawn)
    )


def patients(part: list[PictureFile]) -> set[tuple[int, str]]:
    return {(picture.site, picture.group) for picture in part if picture.group}


@settings(deadline=None)
@given(PICTURES)
def test_the_test_split(drawn: list[tuple[int, int, int]]) -> None:
    everything = pictures(drawn)
    train, test = divide(everything)
    assert sorted(train + test) == everything
    for site in (0, 1):
        own = [picture for picture in everything if picture.site == site]
        kept, held = ([p for p in part if p.site == site] for part in (train, test))
        assert not patients(kept) & patients(held)
        assert {p.label for p in kept} == {p.label for p in own}
        assert divide(own) == (kept, held), "a site's own division depends on no other"


@settings(deadline=None)
@given(st.integers(2, 40), st.integers(2, 12))
def test_about_as_many_as_without_groups(count: int, size: int) -> None:
    """Patients of equal size, each of one class."""
    everything = [
        PictureFile(0, label, "either", Path(f"{label}/{patient}/{number}"), f"{label}-{patient}")
        for label in (0, 1)
        for patient in range(count)
        for number in range(size)
    ]
    _, test = divide(everything)
    held = Counter(label for label, _ in {(p.label, p.group) for p in test})
    for label in (0, 1):
        assert abs(held[label] - max(count / 5, 1)) <= 0.5


def test_without_groups_every_fifth_is_held_out() -> None:
    everything = pictures([(0, number % 3, 0) for number in range(100)])
    _, test = divide(everything)
    expected = []
    for label in range(3):
        expected += [p for p in everything if p.label == label][4::5]
    assert test == expected


def test_a_patient_with_pictures_of_two_classes_is_one() -> None:
    everything = pictures([(0, number % 2, 1 + number % 7) for number in range(70)])
    train, test = divide(everything)
    assert not patients(train) & patients(test)
    assert {p.label for p in test} == {0, 1}


# --- clients --------------------------------------------------------------------------------------


def dataset(labels: list[int], groups: list[int] | None) -> Dataset:
    numbers = None if groups is None else torch.tensor(groups)
    pixels = torch.arange(len(labels), dtype=torch.uint8).reshape(-1, 1, 1, 1)
    train = Images(pixels, torch.tensor(labels), numbers)
    return Dataset("toy", train, train[:1], ("a", "b", "c"), Preparation((0.5,), (0.5,)))


GROUPED = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30)), min_size=30, max_size=120)


@settings(deadline=None)
@given(
    GROUPED,
    st.integers(1, 6),
    st.sampled_from([scheme for scheme in SCHEMES if scheme != "given"]),
    st.sampled_from([0.1, 1.0, float("inf")]),
    st.integers(0, 3),
)
def test_client_splits(
    drawn: list[tuple[int, int]], clients: int, scheme: str, alpha: float, seed: int
) -> None:
    labels, groups = map(list, zip(*drawn, strict=True))
    how = DataSettings(clients=clients, partition=scheme, alpha=alpha, seed=seed, min_size=2)  # type: ignore[arg-type]
    try:
        split = how.split(dataset(labels, groups))
    except PartitionError:  # too few groups, or of too different sizes
        return
    assert sorted(split.indices.tolist()) == list(range(len(labels))), "each picture once"
    owners = [{groups[row] for row in split.of(client)} for client in range(clients)]
    assert sum(map(len, owners)) == len(set(groups)), "no group at two clients"
    assert split.sizes.min() >= 2


def test_most_splits_exist() -> None:
    """The property above must not hold because nothing is ever split."""
    labels, groups = [n % 3 for n in range(400)], [n // 10 for n in range(400)]
    for scheme in SCHEMES:
        if scheme not in (*LEFT_TO_CHANCE, "given"):
            split = DataSettings(clients=5, partition=scheme).split(dataset(labels, groups))
            assert len(split) == 5


def test_fewer_groups_than_clients() -> None:
    with pytest.raises(PartitionError, match="more than the 3 groups"):
        DataSettings(clients=4).split(dataset([0, 1] * 30, [0, 1, 2] * 20))


@settings(deadline=None)
@given(GROUPED, st.floats(0.05, 0.9), st.integers(0, 3))
def test_what_is_held_out(drawn: list[tuple[int, int]], share: float, seed: int) -> None:
    labels, groups = map(list, zip(*drawn, strict=True))
    try:
        found = dataset(labels, groups).holding_out(share, seed)
    except DCFLError:
        assert len(set(groups)) < 2
        return
    sides = [set(part.groups.tolist()) for part in (found.train, found.test)]  # type: ignore[union-attr]
    assert not sides[0] & sides[1]
    rows = torch.cat([found.train.pixels, found.test.pixels]).flatten().tolist()
    assert sorted(rows) == list(range(len(labels)))
    largest = max(Counter(groups).values())
    assert abs(len(found.test) - share * len(labels)) <= largest


def test_none_ignores_the_groups_of_a_data_set_from_python() -> None:
    labels, groups = [n % 3 for n in range(60)], [n // 20 for n in range(60)]
    how = Experiment(data=DataSettings(clients=5, group="none", partition="iid"))
    prepared = prepare(how, dataset(labels, groups))
    plain = how.data.split(dataset(labels, None))
    assert np.array_equal(prepared.data.partition.indices, plain.indices)


# --- on disk --------------------------------------------------------------------------------------


def hospital(folder: Path, patients: int = 6, each: int = 4) -> Path:
    """Level = 10 * patient + number of the picture."""
    for patient in range(patients):
        for number in range(each):
            name = ("benign", "malignant")[patient % 2]
            save(folder / name / f"p{patient}" / f"{number}.png", 10 * patient + number)
    return folder


def owners(images: Images) -> set[int]:
    return set((images.pixels[:, 0, 0, 0] // 10).tolist())


def load(folder: Path, **options: object) -> Dataset:
    return load_dataset(DataSettings(dataset=f"folder:{folder}", image_size=8, **options))  # type: ignore[arg-type]


def test_subfolders_are_groups_by_default(tmp_path: Path) -> None:
    found = load(hospital(tmp_path))
    assert not owners(found.train) & owners(found.test)
    assert found.group_count == 6
    again = load(tmp_path)  # from the cache
    assert again.group_count == 6
    assert owners(load(tmp_path, group="none").train) & owners(found.test)


def test_data_check_and_the_report_say_how_many(tmp_path: Path) -> None:
    settings = DataSettings(dataset=f"folder:{hospital(tmp_path)}", image_size=8)
    card = dataset_card(summarise_dataset(load_dataset(settings), settings))
    assert "groups     6, each whole in every split" in card
    assert "groups" not in dataset_card(summarise_dataset(load_dataset(DataSettings()), settings))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), min_size=4, max_size=40))
def test_groups_of_several_classes_are_counted(drawn: list[tuple[int, int]]) -> None:
    found = dataset([label for label, _ in drawn], [group for _, group in drawn])
    classes = {group: {label for label, other in drawn if other == group} for _, group in drawn}
    several = sum(len(own) > 1 for own in classes.values())
    summary = summarise_dataset(found, DataSettings())
    assert (summary.groups, summary.mixed_groups) == (len(classes), several)


def test_data_check_names_sites_that_lack_a_class_and_shares_of_classes(tmp_path: Path) -> None:
    hospital(tmp_path / "north")
    class_folders(tmp_path / "south" / "benign", p1=4, p2=4)
    settings = DataSettings(dataset=f"sites:{tmp_path}", image_size=8)
    summary = summarise_dataset(load_dataset(settings), settings)
    assert summary.lacking == {"south": ["malignant"]}
    # Of three patients with four pictures each, one is for testing; at the south one of two.
    assert (summary.smallest_test_share, summary.largest_test_share) == pytest.approx((1 / 3, 0.4))
    assert summary.test_share == pytest.approx(12 / 32)


def test_no_subfolders_no_groups(tmp_path: Path) -> None:
    found = load(class_folders(tmp_path, a=10, b=10))
    assert found.group_count is None
    assert found.train.groups is None


def test_a_regular_expression(tmp_path: Path) -> None:
    for patient in range(6):
        for number in range(4):
            file = tmp_path / "ab"[patient % 2] / f"P{patient:02}_{number}.png"
            save(file, 10 * patient + number)
    found = load(tmp_path, group=r"^(P\d+)_")
    assert not owners(found.train) & owners(found.test)
    assert found.group_count == 6
    save(tmp_path / "a" / "odd.png", 99)
    with pytest.raises(DatasetCorrupt, match=r"odd.png: data.group = .* finds no group"):
        load(tmp_path, group=r"^(P\d+)_")


def test_a_table(tmp_path: Path) -> None:
    class_folders(tmp_path / "pictures", a=9, b=9)
    rows = [f"pictures/{name}/{n}.png,patient {n % 5}" for name in "ab" for n in range(9)]
    table = tmp_path / "patients.csv"
    table.write_text("\n".join(["file,group", *rows]))
    assert load(tmp_path / "pictures", group=str(table)).group_count == 5
    table.write_text("\n".join(["file,group", *(row.replace("4", "3") for row in rows)]))
    with pytest.raises(DatasetCorrupt, match=r"a/4.png: not in .*patients.csv"):
        load(tmp_path / "pictures", group=str(table))
    table.write_text("picture,patient\n")
    with pytest.raises(ConfigError, match="file and group among them"):
        load(tmp_path / "pictures", group=str(table))
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "pictures", group=str(tmp_path / "nowhere.csv"))


def test_rules_that_cannot_be() -> None:
    for rule in ("", "(", "[a"):
        with pytest.raises(ConfigError, match=r"data\.group"):
            DataSettings(group=rule)
    with pytest.raises(ConfigError, match=r"data\.group is for pictures of your own"):
        load_dataset(DataSettings(group="^P"))


@pytest.mark.parametrize(("kind", "sites"), [("folder", ["."]), ("sites", ["north", "south"])])
def test_one_group_for_all_of_a_site_says_nothing(
    tmp_path: Path, kind: str, sites: list[str]
) -> None:
    for site in sites:
        for name in ("cat", "dog"):
            class_folders(tmp_path / site / name, images=10)
    with pytest.warns(UserWarning, match="all pictures are of one group, images"):
        found = load_dataset(DataSettings(dataset=f"{kind}:{tmp_path}", image_size=8))
    assert (len(found.train), len(found.test)) == (16 * len(sites), 4 * len(sites))
    assert found.group_count is None


def test_a_class_of_one_patient_is_trained_on_and_told(tmp_path: Path) -> None:
    hospital(tmp_path, patients=4)
    class_folders(tmp_path / "unsure", p9=5)
    with pytest.warns(UserWarning, match="class unsure has no picture to test on"):
        found = load(tmp_path)
    assert 2 not in found.test.labels


def test_one_patient_for_each_class_cannot_be_tested(tmp_path: Path) -> None:
    with pytest.raises(DatasetCorrupt, match="two or more groups"):
        load(hospital(tmp_path, patients=2))


def test_a_patient_in_train_and_in_test(tmp_path: Path) -> None:
    hospital(tmp_path / "train")
    class_folders(tmp_path / "test" / "benign", p0=2, p8=2)
    class_folders(tmp_path / "test" / "malignant", p7=2)
    with pytest.warns(UserWarning, match="p0: to train on and to test on"):
        load(tmp_path)


def test_sites_keep_back_the_same_pictures_when_read_alone(tmp_path: Path) -> None:
    hospital(tmp_path / "north")
    hospital(tmp_path / "south", each=9)
    settings = DataSettings(dataset=f"sites:{tmp_path}", image_size=8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # patients of two sites may have the same names
        found = load_dataset(settings)
    assert found.group_count == 12
    alone = own_sites(settings, Wanted(found.class_names, (8, 8, 3)))
    together = torch.cat([alone["north"].pixels, alone["south"].pixels])
    assert torch.equal(together, found.test.pixels)


def test_a_run_does_not_name_tables_of_a_site(tmp_path: Path) -> None:
    settings = DataSettings(dataset="remote", class_names=("a", "b"), group="/etc/secret.csv")
    with pytest.raises(ConfigError, match="no table of a site is read"):
        load_dataset(settings)
    with pytest.raises(ConfigError, match="no table of a site is read"):
        load_own_site(settings, f"folder:{hospital(tmp_path)}", "", 0)


def test_a_test_set_for_all_sites_with_their_patients(tmp_path: Path) -> None:
    for site in ("north", "south"):
        hospital(tmp_path / site)
    class_folders(tmp_path / "test" / "benign", p4=2)
    with pytest.warns(UserWarning, match="p4: to train on and to test on"):
        load_dataset(DataSettings(dataset=f"sites:{tmp_path}", image_size=8))
