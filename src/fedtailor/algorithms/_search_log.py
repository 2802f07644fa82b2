"""What a client notes of a search of its own: for its log, which never goes to the server."""

from collections.abc import Iterable, Sequence

from fedtailor.core.space import Arch
from fedtailor.core.sums import mean
from fedtailor.core.types import Client, Log, Metric, Offspring, UsedArch
from fedtailor.networks import cost
from fedtailor.networks.network import Network
from fedtailor.search.evolution import Population
from fedtailor.training import learn


def search_log(
    client: Client,
    network: Network,
    population: Population,
    archive: Iterable[Arch],
    loss: float | None,
) -> Log:
    """Tell how a client's search ended.

    The best is tested as the round left it, for the record alone: nobody is charged. Of a fixed
    model no architecture is told.

    Args:
        client: whose search it was.
        network: the best of the population.
        population: what each architecture was judged by.
        archive: those that trained, or would.
        loss: of the training; None: there was none.
    """
    metrics = [] if loss is None else [Metric("train", "loss", loss)]
    for split, images in (("val", client.val), ("test", client.test)):
        accuracy = learn.evaluate(network, images, charged=False)["accuracy"]
        metrics.append(Metric(split, "accuracy", accuracy, "trained"))
    space, task = client.setting.space, client.setting.task
    if not space.choices:
        return Log(tuple(metrics))
    scores = dict(zip(population.archs, population.scores, strict=True))
    told = [("trained", network.arch), *(("archive", arch) for arch in archive)]
    archs = [
        UsedArch(arch, scores[arch], cost.prices(space, arch, task), role) for role, arch in told
    ]
    return Log(tuple(metrics), tuple(archs))


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
    level = mean(joined.scores) if joined else None
    thought = predicted if predicted is not None else [None] * len(scored)
    return tuple(
        Offspring(*place, guess, score, arch in left.archs, level)
        for arch, score, guess in zip(scored.archs, scored.scores, thought, strict=True)
    )
