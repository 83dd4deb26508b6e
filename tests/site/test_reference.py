"""The reference has all keys, verbs and names, because it is made from them."""

import re
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import dcfl
from dcfl.config import as_tables, to_toml
from dcfl.experiment import Experiment
from dcfl.methods import METHODS
from dcfl.runs.identity import KINDS, flat
from dcfl.server.optimizers import OPTIMIZERS


def made(module: str) -> Any:
    return import_module(module)


def test_every_config_key_is_there_with_its_kind() -> None:
    page = made("config_keys").page()
    for key, kind in KINDS.items():
        row = next(line for line in page.splitlines() if line.startswith(f"| `{key}` |"))
        assert row.split(" | ")[2] == {"result": "yes", "place": "no", "seed": "seed"}[kind]
    assert all(f"| `{key}` |" in page for key in flat(as_tables(Experiment())))
    assert all(f'`"{name}"`' in page for name in (*METHODS, *OPTIMIZERS))


def test_a_default_is_the_one_of_the_code() -> None:
    page = made("config_keys").page()
    assert "| `data.alpha` | `0.3` | yes | A number, above 0. " in page
    assert '| `method.name` | `"dcfl-pw"` | yes |' in page


def test_every_verb_has_a_section() -> None:
    page = made("verbs").page()
    for verb in ("run", "flower up", "new method", "data get"):
        assert f" `dcfl {verb}`\n" in page
    assert "| `--seeds 0,1,2` |" in page


def test_the_cheat_sheet_has_every_verb_under_its_heading() -> None:
    page = made("verbs").summary()
    for verb in ("run", "compare", "demo", "evaluate", "data", "flower", "new"):
        assert f"| `dcfl {verb}` |" in page
    assert all(f"**{heading}**" in page for heading in ("Train", "Compare", "Sites", "Research"))
    assert "**Other**" not in page


def test_the_cheat_sheet_has_keys_with_their_defaults() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cheat-sheet.md").read_text()
    shown = dict(re.findall(r"^\| `([\w.]+\.[\w]+)` \| `(.+?)` \|", page, re.MULTILINE))
    defaults = flat(as_tables(Experiment()))
    assert len(shown) == 12
    assert shown == {key: to_toml(defaults[key]) for key in shown}


def test_every_public_name_has_a_place() -> None:
    page = made("api").page()
    names = [name for name in dcfl.__all__ if name not in ("losses", "evaluation", "errors")]
    assert all(f":: dcfl.{name}\n" in page for name in names)
    assert all(f":: dcfl.losses.{name}\n" in page for name in dcfl.losses.__all__)
    assert ".. autoexception:: dcfl.errors.ConfigError\n" in page


def test_what_public_names_give_is_there_with_the_meaning_of_each_field() -> None:
    page = made("api").page()
    for path in ("runs.folder.RecordedRun", "runs.rows.ClientRow", "local_training.LocalTraining"):
        assert f":: dcfl.{path}\n" in page
    _, after = page.split(":: dcfl.data.client_data.ClientData\n")
    rows = [line for line in after.split("```{table}")[1].splitlines() if line.startswith("| `")]
    assert [line.split("`")[1] for line in rows] == ["images", "classes", "preparation"]
    assert all(line.split(" | ")[2].strip(" |") for line in rows)


def test_a_signature_does_not_say_how_fields_are_checked() -> None:
    shown = made("api").without_checks
    wall = "(round: Annotated[int, FieldInfo(annotation=NoneType)])"
    assert shown(None, "class", "", None, None, wall, "") == ("", "")
    assert shown(None, "function", "", None, None, "(folder: Path)", "Run") is None


@dataclass
class Commented:
    plain: int = 0
    behind: int = 0  # what it is
    # Over two
    # lines.
    above: str = "a"


def test_comments_of_fields_are_their_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Commented, "__module__", "dcfl.commented")
    monkeypatch.setitem(__import__("sys").modules, "dcfl.commented", import_module(__name__))
    fields = made("commented_fields").meanings(Commented)
    assert fields == {"behind": "What it is.", "above": "Over two lines."}


@pytest.mark.parametrize(
    ("comment", "sentence"),
    [
        ('"sum" as printed', '`"sum"` as printed.'),
        ("sites:PATH has them", "sites:PATH has them."),
        ("tau: small", "Tau: small."),
        ("torch.compile it.", "torch.compile it."),
    ],
)
def test_a_comment_becomes_a_sentence(comment: str, sentence: str) -> None:
    assert made("commented_fields").as_sentence(comment) == sentence
