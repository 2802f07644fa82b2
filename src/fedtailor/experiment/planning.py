"""What an experiment will cost, before it is run: measured on a few images of one client."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedtailor.core.compute import cores
from fedtailor.core.space import Arch
from fedtailor.data.federation import load_federation
from fedtailor.experiment.plan_text import plan_lines
from fedtailor.experiment.prepare import Prepared, prepare
from fedtailor.experiment.rehearsal import Amount, Rehearsed, rehearse
from fedtailor.networks import cost
from fedtailor.runs.config import Config, as_config


class Plan(dict[str, Any]):
    """What a run would cost: a dictionary that shows itself as `fedtailor plan` does."""

    def __repr__(self) -> str:
        """Say it in a few lines and a picture of the labels."""
        return "\n".join(plan_lines(self))


def plan(config: str | Path | Mapping[str, Any] | Config, **overrides: Any) -> Plan:
    """Say who the clients are and what a run costs; nothing is kept of what is tried for it.

    Args:
        config: a TOML file, a table of the same form, or a Config.
        overrides: values that replace the config's: `seed=1, data={"alpha": 1.0}`.
    """
    config = as_config(config, overrides)
    prepared = prepare(config, load_federation(config.data))
    federation, space = prepared.federation, prepared.setting.space
    measured = rehearse(prepared)
    bounds, unseen = federation.bounds.tolist(), federation.unseen_tests().sum(axis=1).tolist()
    sizes = {"smallest": space.smallest(), "middle": space.middle(), "largest": space.largest()}
    searched = config.algorithm.searches and bool(space.choices)
    return Plan(
        {
            "clients": federation.clients,
            "new_clients": federation.new_clients,
            "client_names": federation.names,
            "classes": list(federation.classes),
            "label_counts": federation.label_counts().tolist(),
            "sizes": [{"train": b - a, "val": c - b, "test": d - c} for a, b, c, d in bounds],
            **({"shifts": [str(one) for one in federation.shifts]} if federation.shifts else {}),
            **({} if prepared.public is None else {"public": len(prepared.public)}),
            **({"unseen_tests": unseen} if federation.tells_unseen else {}),
            "image_shape": list(prepared.setting.task.shape),
            **_prices(prepared, prepared.setting.arch),
            "architectures": {
                name: _prices(prepared, size) for name, size in sizes.items() if searched
            },
            **_scale_up(prepared, measured),
            "warnings": list(config.warnings()),
            "notes": [*_about_workers(config), *federation.notes],
        }
    )


def _about_workers(config: Config) -> list[str]:
    """Say where workers and cores do not go together."""
    workers, there = config.engine.workers, cores()
    if workers > there:
        return [f"engine.workers: {workers} share {there} cores; more than {there} are no faster"]
    if 0 < workers < min(there, config.cohort or there):
        return [f"engine.workers: {workers} of {there} cores are used; more would be faster"]
    return []


def _prices(prepared: Prepared, arch: Arch) -> dict[str, Any]:
    """Say what an architecture costs, and which clients have too little memory for it."""
    setting, how = prepared.setting, prepared.config.algorithm
    found = cost.prices(setting.space, arch, setting.task, how.batch, how.optimizer)
    budgets = {client.id: client.budget.memory_mb for client in prepared.clients}
    over = [client for client, mb in budgets.items() if mb and mb < found["memory_mb"]]
    return {**found, "over_memory_budget": over}


def _scale_up(prepared: Prepared, measured: Rehearsed) -> dict[str, Any]:
    """Say what all clients' rounds cost together, by what one client's took."""
    config, amounts = prepared.config, _amounts(prepared, measured.batch)
    count, lanes = len(amounts), min(max(1, config.engine.workers), cores())
    cohort = min(config.cohort or count, count)
    mean = Amount(sum(a.batches for a in amounts) / count, sum(a.val for a in amounts) / count)
    down, up = measured.down, measured.up
    per_round = [
        cost.round_seconds(measured.macs.of(amount), down + up, prepared.clients[client].budget)
        for client, amount in zip(prepared.participants, amounts, strict=True)
    ]
    times = {
        "training": config.rounds * cohort * measured.seconds.of(mean) / lanes,
        "testing": _count_test_images(prepared) * measured.testing / lanes,
        # after the last and the selected round
        "tuning": 2 * count * mean.batches * measured.tuning / lanes,
    }
    times["total"] = sum(times.values())
    return {
        "bytes_per_client_round": {"down": down, "up": up},
        "bytes_once_per_client": sum(file.bytes for file in prepared.needs.values()),
        "bytes": {"down": down * cohort * config.rounds, "up": up * cohort * config.rounds},
        "training_macs_per_client_round": measured.macs.of(mean),
        "modelled_round_s": {"mean": sum(per_round) / count, "slowest": max(per_round)},
        "cores": {"used": lanes, "there": cores()},
        "estimated_s": {name: round(seconds, 1) for name, seconds in times.items()},
    }


def _amounts(prepared: Prepared, batch: int) -> list[Amount]:
    """Return what each client that takes part has to do in a round."""
    bounds = prepared.federation.bounds[list(prepared.participants)].tolist()
    return [Amount((b - a) / batch, c - b) for a, b, c, _ in bounds]


def _count_test_images(prepared: Prepared) -> int:
    """Count the images of all tests, on the way and at the end."""
    config = prepared.config
    bounds = prepared.federation.bounds[list(prepared.participants)]
    evaluations = math.ceil(config.rounds / config.eval_every) + bool(config.start)
    return evaluations * int((bounds[:, 3] - bounds[:, 1]).sum())
