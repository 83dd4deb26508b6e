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
    ROUNDS_OF_RUN_ANSWERED = "it has answered as many rounds of this run as it allows: {count}"
    ROUNDS_OF_DAY_ANSWERED = "it has answered as many rounds within a day as it allows: {count}"
    NOISE_DEMANDED = "privacy.noise = {noise:g}: it sends nothing with less than {least:g}"
    PRIVACY_DEMANDED = "it sends updates with [privacy] alone: set privacy.clip and privacy.noise"
    BUDGET_SPENT = (
        "one more answer would bring it to {reached} at delta {delta:g}, and its own budget is "
        "epsilon {budget:g}"
    )
    BUDGET_UNPROTECTED = (
        "its own privacy budget does not hold: by its record it has answered without noise before"
    )
    RECORD_CHANGED = "its own privacy budget cannot be counted: its record was changed"
    NOT_ACCOUNTED = "its own privacy budget cannot be counted: dcfl[privacy] is not installed there"
    APP_NOT_PINNED = "it runs apps with other hashes than this one's, {digest}"
    APP_NOT_CHECKED = (
        "app-sha256 in its node config is checked by `dcfl flower supernode`, and it was started "
        "by another command"
    )
    WITHHOLDS_NOTHING_KNOWN = "withhold in its node config has an unknown word {word}{nearest}"

    def error(self, **facts: object) -> SiteRefusal:
        return SiteRefusal(self.value.format(**facts))
