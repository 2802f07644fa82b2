"""The first sentences of a report: what came out, no more than the intervals support."""

from collections.abc import Sequence

from fedtailor.report.facts import first_runs
from fedtailor.report.wording import counted, listed, percent, points, within
from fedtailor.runs.comparison import (
    Difference,
    Group,
    Interval,
    count_test_images,
    differing,
    paired,
    same_data,
)

MAX_NAMES = 5  # in a sentence


def answer(groups: Sequence[Group]) -> str:
    """Say in a sentence or two what came out."""
    there = [(group, group.accuracy) for group in groups if group.accuracy]
    if not there:
        return "Nothing has been tested yet."
    if len(groups) == 1:
        return _of_one(*there[0])
    if not same_data(first_runs(groups)):
        return f"Different data, so no winner: {_means(there)}."
    if len(there) == 1:
        return f"Only {there[0][0].name} has been tested: {percent(there[0][1].mean)}."
    there.sort(key=lambda each: -each[1].mean)
    return _verdict(there)


def basis(groups: Sequence[Group]) -> str:
    """Say on what the answer stands: test images, seeds, and what its intervals are over."""
    found = [_images(groups), _rounds(groups)]
    seeds = [len(group.runs) for group in groups]
    if min(seeds) == max(seeds) == 1:
        found.append(
            "Each setting was run with one seed: intervals (95 %, Student's) are over clients, and "
            "what another seed would change is not in them."
        )
    else:
        fewest = str(min(seeds)) if min(seeds) == max(seeds) else f"{min(seeds)} to {max(seeds)}"
        found.append(
            f"Each setting was run with {fewest} seeds: a client counts with its mean over them, "
            "and intervals (95 %, Student's) are over clients."
        )
    return " ".join(text for text in found if text)


def winner(groups: Sequence[Group]) -> Group | None:
    """Return the group that is ahead of every other beyond chance, if there is one."""
    there = [group for group in groups if group.accuracy]
    best = max(there, key=_mean, default=None)
    others = [group for group in there if group is not best]
    if best is None or not others or not same_data(first_runs(there)):
        return None
    found = [paired(best, group) for group in others]
    return best if all(one and one.beyond_chance for one in found) else None


def what_differs(groups: Sequence[Group]) -> dict[str, list[str]]:
    """Return by config key what each group says, where not all say the same; seeds come first."""
    seeds = [", ".join(str(seed) for seed in group.seeds) for group in groups]
    rows = differing(first_runs(groups))
    rows.pop("seed", None)
    found = {"seed": seeds} if len(set(seeds)) > 1 or len(groups[0].runs) > 1 else {}
    return found | {key: [_value(value) for value in row] for key, row in rows.items()}


def _of_one(group: Group, accuracy: Interval) -> str:
    over = counted(accuracy.clients, "client")
    seeds = f" and {len(group.runs)} seeds" if len(group.runs) > 1 else ""
    sure = ""
    if accuracy.low is not None and accuracy.high is not None:
        low, high = max(accuracy.low, 0), min(accuracy.high, 1)
        sure = f" (95 % interval {100 * low:.1f} to {percent(high)})"
    return (
        f"{group.name}: {percent(accuracy.mean)} test accuracy on average over {over}{seeds}"
        f"{sure}, {percent(group.worst10 or 0.0)} over the worst tenth of them."
    )


def _mean(group: Group) -> float:
    return group.accuracy.mean if group.accuracy else 0.0


def _verdict(there: list[tuple[Group, Interval]]) -> str:
    """Say who is ahead of whom beyond chance, the best mean being compared with all others."""
    best, mean = there[0]
    found = [(group, paired(best, group)) for group, _ in there[1:]]
    behind = [(group, d) for group, d in found if d and d.beyond_chance]
    level = [(best, mean), *(each for each in there[1:] if each[0] not in [g for g, _ in behind])]
    clients = counted(mean.clients, "client")
    if not behind:
        return (
            f"No difference beyond chance between {_names(level)}: {_span(level)} over {clients}."
        )
    if len(level) == 1:
        return (
            f"{best.name} is ahead: {percent(mean.mean)} on average over {clients}, "
            f"{_ahead(*behind[0])}{_others(len(behind) - 1)}."
        )
    return (
        f"No difference beyond chance between {_names(level)}: {_span(level)} over {clients}. "
        f"{best.name} is {_ahead(*behind[0])}{_others(len(behind) - 1)}."
    )


def _ahead(group: Group, difference: Difference | None) -> str:
    if difference is None:
        return f"ahead of {group.name}"
    return (
        f"{100 * difference.mean:.1f} points ahead of {group.name} (95 % interval "
        f"{within(difference)})"
    )


def _others(number: int) -> str:
    return f", and ahead of {number} more" if number else ""


def _names(there: list[tuple[Group, Interval]]) -> str:
    return _some([group.name for group, _ in there])


def _some(names: Sequence[str]) -> str:
    if len(names) <= MAX_NAMES:
        return listed(names)
    return f"{', '.join(names[:MAX_NAMES])} and {len(names) - MAX_NAMES} more"


def _span(there: list[tuple[Group, Interval]]) -> str:
    means = [found.mean for _, found in there]
    low, high = f"{100 * min(means):.1f}", percent(max(means))
    return f"{high} on average" if percent(min(means)) == high else f"means of {low} to {high}"


def _means(there: list[tuple[Group, Interval]]) -> str:
    told = [f"{group.name} {percent(found.mean)}" for group, found in there[:MAX_NAMES]]
    more = len(there) - MAX_NAMES
    return ", ".join(told) + (f" and {more} more" if more > 0 else "")


def _images(groups: Sequence[Group]) -> str:
    """Say how many test images there are: of few, one is worth points."""
    runs = first_runs(groups)
    images, tested = count_test_images(runs[0]), groups[0].accuracies
    sizes = [images[client] for client in tested if images.get(client)]
    if not sizes or not same_data(runs):
        return ""
    low, high = min(sizes), max(sizes)
    each = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    worth = f"{points(1 / low).removeprefix('+')} points"
    return (
        f"{counted(len(sizes), 'client')} with {each} test images each, {sum(sizes):,} in all: one "
        f"image is {'' if low == high else 'up to '}{worth} of a client's accuracy."
    )


def _rounds(groups: Sequence[Group]) -> str:
    """Say who trained for how many rounds, where that differs: more rounds may be all it takes."""
    done: dict[int, list[str]] = {}
    for group in groups:
        done.setdefault(max(run.last_round() for run in group.runs), []).append(group.name)
    if len(done) < 2:
        return ""
    told = [f"{rounds:,} ({_some(names)})" for rounds, names in sorted(done.items())]
    return f"Settings were not trained for equally many rounds: {listed(told)}."


def _value(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(str(each) for each in value) or "none"
    return "—" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
