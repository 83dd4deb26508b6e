"""What a comparison of methods comes to, in sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dcfl.comparisons.groups import Group
from dcfl.comparisons.pairs import MOST_SEEDS, Pair
from dcfl.comparisons.standing import Standing
from dcfl.report.text import counted, interval, listed, number, p_in_words, plural, signed

NO_ROUND = "No round has ended yet."
FEW_TASKS = 2  # more do not fit into a headline
MANY_METHODS = 12  # or settings, as of a sweep; pairs of more are counted, not listed


def verdict(standing: Standing) -> list[str]:
    """The sentences about pairs, and what their p-values are corrected for."""
    tested = max(pairs.tested for pairs in standing.pairs.values())
    return [*pair_sentences(standing), *([about_correction(tested)] if tested > 1 else [])]


def pair_sentences(standing: Standing) -> list[str]:
    """Every method against the reference, and the best against the second best; of several tasks or
    many methods, how the best fares. Empty if there is nothing to compare."""
    if len(standing.tasks) > 1:
        return [f"{task}: {_headline(standing, task)}" for task in standing.tasks]
    ((task, groups),) = standing.tasks.items()
    if len(groups) > MANY_METHODS:
        return [_headline(standing, task), _counted_pairs(standing.pairs[task].pairs)]
    return [sentence(pair) for pair in _told(standing, groups)]


def _counted_pairs(pairs: Sequence[Pair]) -> str:
    apart = sum(pair.told_apart for pair in pairs)
    return f"Of {plural(len(pairs), 'pair')} of methods, {counted(apart)} can be told apart."


def about_correction(pairs: int) -> str:
    return f"p is corrected for {counted(pairs, 'pair')} of methods (Holm); intervals are not."


def _told(standing: Standing, groups: Sequence[Group]) -> list[Pair]:
    pairs = [pair for group in groups[1:] if (pair := standing.gain(group)) is not None]
    begun = [group for group in groups if not math.isnan(standing.mean(group))]
    order = sorted(begun, key=standing.mean, reverse=True)[:2]
    if len(order) == 2 and groups[0] not in order:
        leading = standing.pairs[groups[0].task].between(*(group.method for group in order))
        pairs += [leading] if leading else []
    return pairs


def sentence(pair: Pair) -> str:
    """Who is above whom and how sure that is, or that they are not distinguishable."""
    paired, both = pair.paired, f"{pair.method} and {pair.other}"
    points = abs(paired.spread.mean)
    if paired.ties == paired.seeds:
        return f"{both} have the same accuracy in {_all_seeds(paired.seeds)} they share."
    if pair.told_apart:
        side = "above" if paired.spread.mean > 0 else "below"
        return f"{pair.method} is {number(points)} points {side} {pair.other} ({evidence(pair)})."
    if paired.seeds == 1:
        return f"One seed cannot tell {both} apart ({signed(paired.spread.mean)} points)."
    difference = f"{signed(paired.spread.mean)} points ({evidence(pair)})"
    level = f"{both} are not distinguishable{_once_corrected([pair])}"
    return f"{level}: {difference}. {_more_seeds([pair])}"


def _once_corrected(pairs: Sequence[Pair]) -> str:
    """Without this, an interval without 0 would seem to contradict the sentence."""
    return " once corrected for all pairs" if all(pair.corrected_away for pair in pairs) else ""


def evidence(pair: Pair) -> str:
    """The interval and the p-value."""
    parts = [] if pair.p_value is None else [p_in_words(pair.p_value)]
    if pair.paired.interval is not None:
        parts.insert(0, f"95 % interval {interval(pair.paired.interval)}")
    elif pair.paired.alike:
        parts.insert(0, f"the same in {_all_seeds(pair.paired.seeds)}")
    return ", ".join(parts)


def _all_seeds(count: int) -> str:
    return {1: "the one seed", 2: "both seeds"}.get(count, f"all {counted(count, 'seed')}")


def _more_seeds(pairs: Sequence[Pair]) -> str:
    """How many it takes to tell all of these pairs apart."""
    have = counted(min(pair.paired.seeds for pair in pairs), "seed").capitalize()
    needed = [pair.seeds_needed for pair in pairs]
    known = [need for need in needed if need is not None]
    if len(known) < len(needed):
        return f"{have} cannot tell these apart; more than {MOST_SEEDS} would be needed."
    return f"{have} cannot tell these apart; about {counted(max(known))} would."


def headline(standing: Standing) -> str:
    """Which method is best, and whether that can be said at all."""
    ranking = standing.ranking
    if ranking is not None:
        best, level = next(iter(ranking.mean_ranks)), ranking.level_with_the_best
        known = f"but is not distinguishable from {listed(level, last='or')}" if level else "alone"
        return (
            f"Over {counted(ranking.tasks, 'data set')} or splits, {best} has the best mean rank "
            f"({number(ranking.mean_ranks[best])} of {len(ranking.mean_ranks)}), {known}."
        )
    if len(standing.tasks) > FEW_TASKS:
        return f"{counted(len(standing.tasks), 'data set').capitalize()} or splits, compared below."
    told = [(task, _headline(standing, task)) for task in standing.tasks]
    if all(text == NO_ROUND for _, text in told):
        return NO_ROUND
    return " ".join(f"{task}: {text}" if task else text for task, text in told)


def _headline(standing: Standing, task: str) -> str:
    best, groups = standing.best(task), standing.tasks[task]
    if best is None:
        return NO_ROUND
    if len(groups) == 1:
        return _alone(best, standing.accuracy)
    sentence = f"{best.method} has the highest EMA accuracy: {number(standing.mean(best))} %"
    others = [group.method for group in groups if group is not best]
    pairs = [standing.pairs[task].between(best.method, other) for other in others]
    level = [pair for pair in pairs if pair is not None and not pair.told_apart]
    if level:
        return f"{sentence}. {_not_distinguishable(level, len(others))}"
    gain = standing.gain(best)
    if gain is None:
        above = f", above {listed(others)}" if all(pairs) else ""
        return f"{sentence}{above}."
    points = f"{number(abs(gain.paired.spread.mean))} points"
    side = "above" if gain.paired.spread.mean > 0 else "below"
    return f"{sentence}, {points} {side} {gain.other} ({evidence(gain)})."


def _alone(group: Group, accuracy: str) -> str:
    over = f", on average over {plural(group.seeds, 'seed')}" if group.seeds > 1 else ""
    highest, average = (group.spread(f"{kind}_{accuracy}").mean for kind in ("max", "ema"))
    return (
        f"{group.method} reached {number(highest)} % at best (MAX) and {number(average)} % as a "
        f"moving average (EMA){over}.{_personal(group)}"
    )


def _personal(group: Group) -> str:
    if not group.has_personal:
        return ""
    accuracy = number(group.spread("personal_accuracy").mean)
    return f" That is the global model: the clients’ own reached {accuracy} % on average."


def _not_distinguishable(level: Sequence[Pair], others: int) -> str:
    """A sentence that names some of the others or all; where it is one, with the numbers."""
    names = listed([pair.other for pair in level], last="or")
    whom = names if len(level) < others or others == 1 else "any other method"
    if max(pair.paired.seeds for pair in level) == 1:
        return f"One seed cannot tell it from {whom}."
    numbers = ""
    if len(level) == 1:
        numbers = f" ({signed(level[0].paired.spread.mean)} points, {evidence(level[0])})"
    same = all(pair.paired.ties == pair.paired.seeds for pair in level)
    more = "" if same else f" {_more_seeds(level)}"
    return f"It is not distinguishable from {whom}{_once_corrected(level)}{numbers}.{more}"
