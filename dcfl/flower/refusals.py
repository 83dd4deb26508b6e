"""What a site refuses by its own rules, each as one line that the server may read.

A line names settings and reveals nothing of the site's data. The braces are filled with words of
the run's own config or of the site's rules.
"""

from __future__ import annotations

from enum import StrEnum

from dcfl.errors import SiteRefusal


class Refusal(StrEnum):
    UPDATES_WITHHELD = "it withholds updates: it evaluates and does not train"
    SCORES_WITHHELD = "it withholds scores"
    CLASS_COUNTS_WITHHELD = "it withholds class counts, which these scores contain"
    METHOD_TELLS_CLASSES = (
        "it withholds class counts, and what {method} sends beside the weights may tell them: "
        "choose a method.name that sends weights alone, such as fedavg or dcfl-sw"
    )
    SIZES_WEIGHED = (
        'it withholds sizes, and server.aggregation = "{aggregation}" weighs by them: use "uniform"'
    )
    WITHHOLDS_NOTHING_KNOWN = "withhold in its node config has an unknown word {word}{nearest}"

    def error(self, **facts: object) -> SiteRefusal:
        return SiteRefusal(self.value.format(**facts))
