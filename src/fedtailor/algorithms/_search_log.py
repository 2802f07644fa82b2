"""What a client notes of a search of its own: for its log, which never goes to the server."""

from collections.abc import Iterable, Mapping, Sequence

from fedtailor.core.space import Arch
from fedtailor.core.types import Client, Metric, Offspring, UsedArch
from fedtailor.networks import cost
from fedtailor.networks.network import Network
from fedtailor.search.evolution import Population
from fedtailor.training import learn


def trained_accuracies(client: Client, network: Network) -> tuple[Metric, ...]:
    """Test a network as the client's round left it, for the record alone: nobody is charged."""
    found = {
        split: learn.evaluate(network, examples, charged=False)["accuracy"]
        for split, examples in (("val", client.val), ("test", client.test))
    }
    return tuple(Metric(split, "accuracy", value, "trained") for split, value in found.items())


def searched_archs(
    client: Client, best: Arch, archive: Iterable[Arch], scores: Mapping[Arch, float]
) -> tuple[UsedArch, ...]:
    """Tell the best and the archive, by what each was judged; of a fixed model nothing is told."""
    space, task = client.setting.space, client.setting.task
    if not space.choices:
        return ()
    told = [("trained", best), *(("archive", arch) for arch in archive)]
    return tuple(
        UsedArch(arch, scores[arch], cost.prices(space, arch, task), role) for role, arch in told
    )


def offspring_scores(
    place: tuple[int, str],
    predicted: Sequence[float] | None,
    scored: Population,
    joined: Population | None,
    left: Population,
) -> tuple[Offspring, ...]:
    """Tell what was thought of offspring, and what came of it.

    Args:
        place: the iteration, and what proposed them.
        predicted: a score each; None: nobody predicted.
        scored: the offspring.
        joined: whom they were proposed to join, scored with the same weights; None: with others.
        left: who survived.
    """
    level = sum(joined.scores) / len(joined) if joined else None
    thought = predicted if predicted is not None else [None] * len(scored)
    return tuple(
        Offspring(*place, guess, score, arch in left.archs, level)
        for arch, score, guess in zip(scored.archs, scored.scores, thought, strict=True)
    )
