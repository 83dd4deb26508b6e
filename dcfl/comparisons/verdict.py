"""What a comparison of methods comes to, in sentences."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from dcfl.comparisons.groups import Group
from dcfl.comparisons.pairs import Pair, Pairs
from dcfl.comparisons.standing import Standing
from dcfl.report.text import counted, interval, listed, number, p_in_words, plural, signed

NO_ROUND = "No round has ended yet."
FEW_TASKS = 2  # more do not fit into a headline
MANY_METHODS = 12  # or settings, as of a sweep; differences of more are counted, not listed


def verdict(standing: Standing) -> list[str]:
    """The sentences about differences, what their p-values are corrected for, and of which
    accuracy they are, if it is none of the global model's."""
    most = max(standing.pairs.values(), key=lambda pairs: pairs.tested)
    sentences = pair_sentences(standing)
    if most.tested > 1:
        sentences.append(about_correction(most))
    return [*sentences, *([standing.about_own] if sentences and standing.about_own else [])]


def pair_sentences(standing: Standing) -> list[str]:
    """Every method against the reference, and with all pairs the best against the second best; of
    several tasks or many methods, how the best fares. Empty if there is nothing to compare."""
    if len(standing.tasks) > 1:
        return [f"{task}: {_headline(standing, task)}" for task in standing.tasks]
    ((task, groups),) = standing.tasks.items()
    if len(groups) > MANY_METHODS:
        return [_headline(standing, task), counted_apart(standing.pairs[task])]
    return [sentence(pair) for pair in _told(standing, groups)]


def counted_apart(pairs: Pairs) -> str:
    apart = sum(pair.told_apart for pair in pairs.pairs)
    which = f"differences to {pairs.reference}" if pairs.reference else "pairs of methods"
    return f"Of {len(pairs.pairs):,} {which}, {counted(apart)} can be told from chance."


def about_correction(pairs: Pairs) -> str:
    what = counted(pairs.tested, "pair") + " of methods"
    if pairs.reference:
        what = f"{counted(pairs.tested, 'comparison')} with {pairs.reference}"
    return f"p is corrected for {what} (Holm); intervals are not."


def _told(standing: Standing, groups: Sequence[Group]) -> list[Pair]:
    pairs = [pair for group in groups[1:] if (pair := standing.gain(group)) is not None]
    begun = [group for group in groups if not math.isnan(standing.mean(group))]
    order = sorted(begun, key=standing.mean, reverse=True)[:2]
    if len(order) == 2 and groups[0] not in order:
        leading = standing.pairs[groups[0].task].between(*(group.method for group in order))
        pairs += [leading] if leading else []
    return pairs


def sentence(pair: Pair) -> str:
    """Who is above whom and how sure that is; if nobody is, how far apart they can be at most."""
    return f"{pair.method} {_difference(pair)}."


def _difference(pair: Pair) -> str:
    paired, mean, kind = pair.paired, pair.paired.spread.mean, _kind(pair)
    if kind == LEVEL_WITH:
        return f"has the accuracy of {pair.other} in {_all_seeds(paired.seeds)} they share"
    side = f"{'above' if mean > 0 else 'below'} {pair.other}"
    points = f"{number(abs(mean))} points"
    if paired.seeds == 1:
        return f"is {points} {side} in one seed, which says nothing about chance"
    if pair.told_apart or pair.corrected_away:
        return f"is {points} {side} ({evidence(pair)})"
    if kind != WITHIN and (paired.one_sided or paired.interval is None):
        seeds = _all_seeds(paired.seeds)
        but = ", but seeds differ too much to be sure" if paired.interval else ""
        return f"is {side} in {seeds}, by {points} on average{but} ({evidence(pair)})"
    told = "cannot be told from"
    if kind == WITHIN:
        told = f"is within {number(paired.bound or 0.0)} points of"
    return f"{told} {pair.other} ({signed(mean)}, {evidence(pair)})"


LEVEL_WITH, WITHIN = "level with", "within {} points of"


def _kind(pair: Pair) -> str:
    """How a method stands to the other, where many are summed up."""
    side = "above" if pair.paired.spread.mean > 0 else "below"
    if pair.told_apart:
        return side
    if pair.paired.ties == pair.paired.seeds:
        return LEVEL_WITH
    if pair.corrected_away or pair.paired.leans:
        return f"probably {side}"
    return WITHIN if pair.paired.close else "not told from"


def evidence(pair: Pair) -> str:
    """The interval and the p-value; both p-values where they disagree."""
    parts = [] if pair.p_value is None else [p_in_words(pair.p_value)]
    if pair.corrected_away and pair.paired.p_value and pair.p_value:
        corrected = number(pair.p_value, 3)
        parts = [f"{p_in_words(pair.paired.p_value)} by itself, {corrected} among all"]
    if pair.paired.interval is not None:
        parts.insert(0, f"95 % interval {interval(pair.paired.interval)}")
    return ", ".join(parts)


def _all_seeds(count: int) -> str:
    return {1: "the one seed", 2: "both seeds"}.get(count, f"all {counted(count, 'seed')}")


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
        return _over_many(standing)
    told = [(task, _headline(standing, task)) for task in standing.tasks]
    if all(text == NO_ROUND for _, text in told):
        return NO_ROUND
    return " ".join(f"{task}: {text}" if task else text for task, text in told)


def accuracy_words(standing: Standing) -> str:
    own = standing.quantity == "own_accuracy"
    return "mean accuracy of clients, each on its own" if own else "EMA accuracy"


def _over_many(standing: Standing) -> str:
    """How often each method is the best, and how often that is more than chance."""
    if not (leading := [best.method for task in standing.tasks if (best := standing.best(task))]):
        return NO_ROUND
    wins = [f"{method}'s in {counted(won)}" for method, won in Counter(leading).most_common()]
    of = f"Of {counted(len(leading), 'data set')}, splits or settings, the highest"
    text = f"{of} {accuracy_words(standing)}"
    compared = [pairs.pairs for pairs in standing.pairs.values() if pairs.pairs]
    apart = sum(any(pair.told_apart for pair in pairs) for pairs in compared)
    told = f"; methods can be told apart in {counted(apart) if apart else 'none'}" * bool(compared)
    return f"{text} is {listed(wins)}{told}."


def _headline(standing: Standing, task: str) -> str:
    best, groups = standing.best(task), standing.tasks[task]
    if best is None:
        return NO_ROUND
    if len(groups) == 1:
        return _alone(best, standing)
    name = accuracy_words(standing)
    highest = f"{best.method} has the highest {name}, {number(standing.mean(best))} %"
    gain = standing.gain(best)
    others = [pair for group in groups if group is not best and (pair := standing.gain(group))]
    if gain is None:
        rest = _summed_up(others) if best is groups[0] else ""
        return f"{highest}. {rest}".strip()
    return f"{highest}. It {_difference(gain)}. {_summed_up(others)}".strip()


def _summed_up(pairs: Sequence[Pair]) -> str:
    """How these methods stand to the reference, in one sentence."""
    kinds: dict[str, list[Pair]] = {}
    for pair in pairs:
        kinds.setdefault(_kind(pair), []).append(pair)
    parts: list[str] = []
    for kind, alike in kinds.items():
        verb, bounds = "is" if len(alike) == 1 else "are", [pair.paired.bound for pair in alike]
        farthest = max((bound for bound in bounds if bound is not None), default=0.0)
        names = listed([pair.method for pair in alike])
        whom = alike[0].other if not parts else "it"
        parts.append(f"{names} {verb} {kind.format(number(farthest))} {whom}")
    return f"{'; '.join(parts)}." if parts else ""


def _alone(group: Group, standing: Standing) -> str:
    over = f", on average over {plural(group.seeds, 'seed')}" if group.seeds > 1 else ""
    own, final, highest, average = (
        number(group.spread(f"{kind}_accuracy").mean) for kind in ("own", "final", "max", "ema")
    )
    if standing.quantity == "own_accuracy":
        whose = " with models of their own" if group.has_personal else ""
        return (
            f"{group.method} ends with {own} % on average over clients, each on its own{whose}"
            f"{over}; the global model has {final} %."
        )
    return (
        f"{group.method} ends with a model of {final} %{over}; at best it had {highest} % (MAX), "
        f"as a moving average {average} % (EMA)."
    )
