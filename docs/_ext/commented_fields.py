"""What a dataclass says about its fields, as sentences of a page."""

import re

from dcfl.settings import comments

QUOTED = re.compile(r'(?<!`)"[^"\s]*"(?!`)')


def meanings(owner: type) -> dict[str, str]:
    """By field, from the class and its bases; a field may have none."""
    return {name: as_sentence(text) for name, text in comments(owner).items()}


def as_sentence(text: str) -> str:
    """With a capital and a full stop; values as they stand in a config are in code letters."""
    text = QUOTED.sub(lambda match: f"`{match[0]}`", text)
    if re.match(r"[a-z]+(\s|[,;:.]?\s|$)", text):  # not of sites:PATH or torch.compile
        text = text[0].upper() + text[1:]
    return f"{text.rstrip('.')}."
