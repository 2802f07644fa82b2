"""SPIDER whose silos keep convolutions by chance, as often as a search did: a control of its size.

    fedtailor run my.toml algorithm.name=examples/matched_chance.py:Matched \
        algorithm.normal_share=0.7 algorithm.reduction_share=0.6

`searcher = "random"` keeps each of two operations equally often; if a search keeps more of the
dearer one, its networks are larger, and may be better for that alone. Here an edge keeps its
convolution with the probability that is asked for, at the same events. For `s2`; what
`without/...` tells in the run folder are coins, 0 for what stays.
"""

import itertools
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Interval

from fedtailor import Client
from fedtailor.algorithms.spider import SPIDER, Private
from fedtailor.search import perturb

Share = Annotated[float, Interval(ge=0, le=1)]


@dataclass(frozen=True)
class Matched(SPIDER):
    """SPIDER by chance, with a share of convolutions for each cell."""

    normal_share: Share = 0.5
    reduction_share: Share = 0.5

    def _tested(self, client: Client, own: Private, removed: perturb.Removed) -> perturb.Tested:
        """Throw a coin for every edge instead of testing anything."""
        rng, coins = client.rng("matched"), dict[str, tuple[float, float]]()
        for edge, names in itertools.groupby(removed, lambda name: name.rsplit("/", 1)[0]):
            share = self.normal_share if edge.startswith("normal ") else self.reduction_share
            keeps = float(torch.rand((), generator=rng)) < share
            for name in names:
                coins[name] = (float(keeps != name.endswith("/sep_conv_3x3")), 0.0)
        return coins
