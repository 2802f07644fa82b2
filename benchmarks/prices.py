"""What it costs to bind and to price new architectures of the `cpu` preset of DARTS.

CPU milliseconds, one thread, means over random architectures after ten others: `bind_new_ms` of a
store; `price_new_ms` of parameters, multiply-adds and training memory. `chosen_s` are CPU seconds
of finding the most probable architecture within a limit of training memory, as PerFedRLNAS does
for clients that have one: the means for limits between what the smallest architecture and what the
most probable one takes, and the slowest, for a limit that nothing meets.
"""

import functools
import json
import statistics

import torch

from benchmarks.subnet_step import TASK, seconds
from fedtailor.core.space import Arch
from fedtailor.core.types import Setting
from fedtailor.networks import cost
from fedtailor.networks.initial import initial_supernet
from fedtailor.networks.store import Store
from fedtailor.search import genes, policy
from fedtailor.spaces.darts import DARTS

WARM, NEW, BATCH = 10, 20, 32
SHARES = (0.8, 0.5, 0.1)  # of the memory between the smallest and the most probable architecture


def space_of(form: str) -> DARTS:
    return DARTS(**DARTS.presets["cpu"], form=form)  # pyright: ignore[reportArgumentType]


def bind_ms(space: DARTS, archs: list[Arch]) -> float:
    store = Store(space, TASK, initial_supernet(Setting(TASK, space, 1, 0)))
    times = [seconds(functools.partial(store.bind, arch)) for arch in archs]
    return round(1e3 * statistics.mean(times[WARM:]), 1)


def price_ms(space: DARTS, archs: list[Arch]) -> float:
    def price(arch: Arch) -> None:
        cost.parameters(space, arch, TASK)
        cost.forward_macs(space, arch, TASK)
        cost.training_macs(space, arch, TASK)
        cost.training_memory(space, arch, TASK, BATCH)

    times = [seconds(functools.partial(price, arch)) for arch in archs]
    return round(1e3 * statistics.mean(times[WARM:]), 1)


def chosen_s(space: DARTS) -> dict[str, float]:
    def size(arch: Arch) -> float:
        return cost.training_memory(space, arch, TASK, BATCH)

    times: dict[float, list[float]] = {}
    for seed in range(3):
        rng = torch.Generator().manual_seed(seed)
        options = sum(len(choice.options) for choice in space.choices)
        alphas = torch.randn(options, generator=rng, dtype=torch.float64)
        most, least = size(policy.likeliest(space, alphas)), size(space.smallest())
        for share in SHARES:
            limit = least + share * (most - least)
            find = functools.partial(policy.likeliest_within, space, alphas, size, limit)
            times.setdefault(share, []).append(seconds(find))
        find = functools.partial(policy.likeliest_within, space, alphas, size, 0.0)
        times.setdefault(0.0, []).append(seconds(find))
    means = {str(share): round(statistics.mean(times[share]), 2) for share in SHARES}
    return means | {"none fits": round(max(times[0.0]), 2)}


def main() -> None:
    torch.set_num_threads(1)
    result: dict[str, object] = {"name": "prices"}
    for form in ("path", "relaxed"):
        space = space_of(form)
        archs = genes.sample_many(space, WARM + NEW, torch.Generator().manual_seed(1))
        found = {"bind_new_ms": bind_ms(space, archs), "price_new_ms": price_ms(space, archs)}
        result[form] = found
        print(form, found, flush=True)
    result["chosen_s"] = chosen_s(space_of("path"))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
