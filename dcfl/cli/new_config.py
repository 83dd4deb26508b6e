"""`dcfl new config NAME`: one of the configs that come with dcfl, to start from."""

from __future__ import annotations

from pathlib import Path

import dcfl
from dcfl.errors import ConfigError
from dcfl.system.storage import write_whole
from dcfl.system.typed_settings import nearest

PACKAGE = Path(dcfl.__file__).parent
# A wheel has a copy of the clone's folder inside the package.
PLACES = (PACKAGE / "configs", PACKAGE.parent / "configs")


def config_names() -> list[str]:
    return sorted(path.stem for path in _folder().glob("*.toml"))


def new_config(name: str, folder: Path) -> tuple[Path, str]:
    """Write NAME.toml into the folder, overwriting nothing; and the verb that runs it."""
    known = config_names()
    if name not in known:
        raise ConfigError(f"there is no config {name!r} to start from{nearest(name, known)}")
    path = folder / f"{name}.toml"
    if path.exists():
        raise ConfigError(f"{path} is there already")
    text = (_folder() / path.name).read_text(encoding="utf-8")
    write_whole(path, text.replace(f"configs/{path.name}", path.name))
    return path, "dcfl flower run" if 'dataset = "remote"' in text else "dcfl run"


def _folder() -> Path:
    found = next((place for place in PLACES if (place / "digits.toml").is_file()), None)
    if found is None:
        raise ConfigError("the configs that come with dcfl are missing: install it again")
    return found
