"""Pictures of one patient are never on both sides: of the test split, of client splits, of what is
held out."""

import contextlib
import os
import random
import re
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dcfl.cli.cards import dataset_card
from dcfl.data import Dataset, DataSettings, Images, Preparation, load_dataset
from dcfl.data.dataset_summary import summarise_dataset
from dcfl.data.splits import grouping
from dcfl.data.splits.grouping import PictureFile, divide
from dcfl.data.splits.partition import LEFT_TO_CHANCE, SCHEMES
from dcfl.errors import ConfigError, DatasetCorrupt, DCFLError, PartitionError
from dcfl.experiment import Experiment
from dcfl.runs.prepare import prepare
from tests.data.pictures import class_folders, save
from tests.reliability.victims import SLOW, damaged

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


def of_patients(names: list[str], label: int = 0) -> list[PictureFile]:
    return [
        PictureFile(0, label, "either", Path(f"x/{label}/{name}/{number}.png"), name)
        for name in names
        for number in range(3)
    ]


def test_about_a_fifth_of_many_patients_is_for_testing() -> None:
    _, test = divide(of_patients([f"patient {number}" for number in range(2000)]))
    assert 0.17 < len(test) / 6000 < 0.23


@settings(deadline=None)
@given(st.sets(st.integers(0, 10**6), min_size=2, max_size=30), st.sets(st.integers(0, 10**6)))
def test_new_patients_make_no_test_pictures_of_old_training_pictures(
    old: set[int], new: set[int]
) -> None:
    """Two classes: one grows, and the other has a patient in common with it."""
    everything = of_patients([f"p{number}" for number in sorted(old)])
    everything += of_patients([f"p{min(old)}", "q1", "q2", "q3", "q4"], label=1)
    train, _ = divide(everything)
    added = of_patients([f"p{number}" for number in sorted(new - old)])
    more_train, more_test = divide(sorted([*everything, *added], key=lambda p: p.label))
    trained = patients(train)
    # Those that had to be trained on although their hash says otherwise.
    low = {(0, name) for _, name in trained if grouping.key_of(name) < 0.2 * 2**47}
    assert not (trained - low) & patients(more_test)
    assert not patients(more_train) & patients(more_test)


def test_eighteen_new_patients_move_nobody() -> None:
    names = [f"patient_{number:03}" for number in range(60)]
    train, test = divide(of_patients(names))
    more_train, more_test = divide(of_patients([*names, *(f"new_{n}" for n in range(18))]))
    assert {*train} <= {*more_train}
    assert {*test} <= {*more_test}


def test_a_second_picture_of_one_patient_moves_nobody(tmp_path: Path) -> None:
    """Until it came, every patient had one picture."""
    for number in range(60):
        save(tmp_path / "ab"[number % 2] / f"p{number:02}" / "1.png", 3 * number)
    before = load(tmp_path)
    save(tmp_path / "a" / "p00" / "2.png", 1)
    after = load(tmp_path)
    old, new = (set(found.train.pixels[:, 0, 0, 0].tolist()) for found in (before, after))
    assert new - old <= {1}
    assert old <= new
    kept_back = [found.holding_out(0.2, seed=0).test.pixels for found in (before, after)]
    held, held_after = (set(pixels[:, 0, 0, 0].tolist()) for pixels in kept_back)
    assert held_after - held <= {1}
    assert held <= held_after


def test_the_side_does_not_depend_on_where_the_folder_lies(tmp_path: Path) -> None:
    """Pictures without a patient among others with one, too."""
    sides = []
    for place in ("here", "there/and/deeper"):
        hospital(tmp_path / place)
        for number in range(20):
            save(tmp_path / place / "benign" / f"{number}.png", 100 + number)
        sides.append(load(tmp_path / place).test.pixels)
    assert torch.equal(*sides)


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
    pixels = (torch.arange(len(labels)) % 256).to(torch.uint8).reshape(-1, 1, 1, 1)
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
    except DCFLError:  # every group is the only one of some class
        assert all(
            any(
                {g for g, other in zip(groups, labels, strict=True) if other == label} == {group}
                for label in set(labels)
            )
            for group in set(groups)
        )
        return
    sides = [set(part.groups.tolist()) for part in (found.train, found.test)]  # type: ignore[union-attr]
    assert not sides[0] & sides[1]
    rows = torch.cat([found.train.pixels, found.test.pixels]).flatten().tolist()
    assert sorted(rows) == list(range(len(labels)))
    assert {*found.train.labels.tolist()} == {*labels}


def test_about_the_share_is_held_out_and_new_groups_move_none() -> None:
    groups = [number // 3 for number in range(3000)]
    found = dataset([0] * 3000, groups).holding_out(0.1, seed=1)
    assert 0.08 < len(found.test) / 3000 < 0.12
    more = dataset([0] * 3600, [number // 3 for number in range(3600)]).holding_out(0.1, seed=1)
    other = dataset([0] * 3000, groups).holding_out(0.1, seed=2)
    held, held_of_more, held_of_other = (
        set(one.test.groups.tolist())  # type: ignore[union-attr]
        for one in (found, more, other)
    )
    assert held <= held_of_more
    assert {g for g in held_of_more if g < 1000} == held
    assert held != held_of_other


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


@pytest.mark.parametrize(
    "rule",
    [
        *("(a|aa)+$", "(a|a?)+$", "(.*)*b", "(?:a?){200}a{200}$", "(.*a){20}b", "((.*){99}){9}b"),
        *("(?:(?:a{1000}){1000}){1000}", "(" * 9999 + ")" * 9999, r"(a+)+\1$", "(?=(a+)+$)b"),
        *("(?i)" + "[\0-\U0010ffff]" * 90 + "b", "(" * 249 + ")" * 249, "()" * 250, "|" * 10**5),
        *("a{99999999999}", "\ud800", "(?P<a>", r"(\w|\w\w)+!$", r"(?:\w?){200}\w{200}$"),
        *(r"(\w*)*!b", r"(?:\w{1,9}\W?){99}b", r"\w\W" * 120, "[" * 500, "[[:" * 166),
    ],
    ids=lambda rule: rule[:20],
)
def test_an_expression_that_would_never_end_does(rule: str, tmp_path: Path) -> None:
    """It may come in somebody else's run folder."""
    for name in "bc":
        for number in range(3):
            save(tmp_path / name / f"{'a' * 200}{number}!.png", number)
    began = time.monotonic()
    with contextlib.suppress(ConfigError, DatasetCorrupt):
        load(tmp_path, group=rule)
    assert time.monotonic() - began < 2


def test_an_expression_that_takes_long_for_all_names_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class_folders(tmp_path, a=10, b=10)
    monkeypatch.setattr(grouping, "MOST_SECONDS", -1.0)
    with pytest.raises(ConfigError, match=r"data.group = '\(.\)' takes too long: choose a simpler"):
        load(tmp_path, group="(.)")


@pytest.mark.skipif(os.name == "nt", reason="no such names there")
def test_an_expression_reads_every_name(tmp_path: Path) -> None:
    """Letters of all languages, and bytes that are none."""
    for number in range(5):
        for group, name in enumerate((b"\xff_", "Ä_".encode(), "患者_".encode(), b"p_")):
            folder = os.fsencode(tmp_path) + (b"/a/" if group % 2 else b"/b/")
            save(Path(os.fsdecode(folder + name + str(number).encode() + b".png")), number)
    assert load(tmp_path, group="^(.*)_").group_count == 4
    assert load(tmp_path, group="(?:Ä|患者|p)|.").group_count == 4


RULES = [
    *(r"(\w+)", r"^(\w+)_", r"(\d+)", r"^([^_]+)_(\w+)", r"([\w-]+)", r"([\w\-.]+)", r"[^\w\s]+"),
    *(r"\W(\w+)", r"(\D+)\d", r"^(\S+)\s", r"\s+(\S)", r"[\s\d]+", r"[^\d]+", r"[^]\w]", r"[]\d]+"),
    *(
        r"^(P\d{2,3})",
        r"(\w{,3})_",
        r"(\w{3,})",
        r"(?i)^(müller|p)",
        r"^(.+?)[_ -]",
        r"(?P<who>\w+)",
    ),
    *(
        r"\\w",
        r"[\\w]+",
        r"\[\w\]",
        r"\[(\w+)",
        r"(?:\w|\s)+$",
        r"(a|\w)*",
        r"\.(\w+)$",
        r"([_\w-]+)",
    ),
]
LETTERS = st.sampled_from(
    [*{chr(code) for code in range(1, 0x800)} - {"/", "\n"}, *"患者٣Ⅷ²_\u3000\u2028\u2003\x1c𝔘💉"]
)
NAMES = st.sampled_from(["Müller_1", "Mörike-2", "P٣٤_1", "a b", r"\w", "[x]y"]) | st.text(LETTERS)


@settings(deadline=None)
@given(NAMES)
def test_an_expression_means_what_it_means_in_python(name: str) -> None:
    path = Path("a") / f"{name}.png"
    for rule in RULES:
        group_of, found = grouping.grouping(rule), re.search(rule, f"{name}.png")
        if found is None:
            with pytest.raises(DatasetCorrupt, match="finds no group"):
                group_of(path, Path("a"))
        else:
            assert group_of(path, Path("a")) == (found[min(found.re.groups, 1)] or ""), rule


def test_names_with_umlauts_are_told_apart() -> None:
    group_of = grouping.grouping(r"(\w+)")
    for name in ("Müller", "Mörike", "患者٣"):
        assert group_of(Path(f"a/{name}.png"), Path("a")) == name


@pytest.mark.parametrize(
    ("rule", "part"),
    [
        *[(r"\bP", r"\b"), (r"P\B", r"\B"), (r"\C", r"\C"), (r"\Q\w\E", r"\Q")],
        *[(r"[^\W_]+", r"\W in brackets"), (r"[\D]", r"\D in brackets")],
        *[(r"[]\S]", r"\S in brackets"), (r"[\b]", r"\b in brackets")],
    ],
)
def test_forms_without_pythons_meaning_are_refused(rule: str, part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        DataSettings(group=rule)
    assert f"has {part}, which cannot be read here" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "rule", [r"(?=\w)", r"(\w)\1", "(?x)a", "(", "[a", "a\\", r"[z-\w]", r"a\Z"]
)
def test_what_re2_does_not_read_is_said_so(rule: str) -> None:
    with pytest.raises(ConfigError, match="is not an expression that RE2 reads: "):
        DataSettings(group=rule)


@pytest.mark.parametrize(
    "rule", [r"([[:alpha:]\d]+)", r"([\p{L}\d]+)", r"([\w-.]+)\.", r"(\pL+\w*)"]
)
def test_re2s_own_forms_go_together_with_pythons(rule: str) -> None:
    assert grouping.grouping(rule)(Path("a/M٣.png"), Path("a")) == "M٣"


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
    for number, site in enumerate(("north", "south")):
        alone = load_dataset(replace(settings, dataset=f"folder:{tmp_path / site}"))
        assert torch.equal(found.test.of(number).pixels, alone.test.pixels)


@pytest.mark.parametrize("rule", ["/etc/secret.csv", "none", "Smith"])
def test_a_run_does_not_say_which_pictures_of_a_site_stay_together(rule: str) -> None:
    settings = DataSettings(dataset="remote", class_names=("a", "b"), group=rule)
    with pytest.raises(ConfigError, match="each site's own setting: `group` in its node config"):
        load_dataset(settings)


def test_a_test_set_for_all_sites_with_their_patients(tmp_path: Path) -> None:
    for site in ("north", "south"):
        hospital(tmp_path / site)
    class_folders(tmp_path / "test" / "benign", p4=2)
    with pytest.warns(UserWarning, match="p4: to train on and to test on"):
        load_dataset(DataSettings(dataset=f"sites:{tmp_path}", image_size=8))


def test_mutations_of_a_table_are_read_or_refused_in_one_line(tmp_path: Path) -> None:
    table, rng, refused = tmp_path / "groups.csv", random.Random(1), 0
    rows = [f"{number}.png,p{number % 7}\n" for number in range(20)]
    original = "".join(["file,group\n", *rows]).encode()
    for _ in range(4_000 if SLOW else 400):
        table.write_bytes(damaged(original, rng))
        try:
            group_of = grouping.grouping(str(table))
            for number in range(20):
                group_of(tmp_path / f"{number}.png", tmp_path)
        except DCFLError as error:
            refused += "\n" not in str(error)
    assert refused > 100
