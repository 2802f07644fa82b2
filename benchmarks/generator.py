"""Time 100 guided architectures from the generators that come with the package.

    python -m benchmarks.generator [--number 100] [--steps 10]

Process CPU seconds, one thread, the embedding of the client's data cached. The floor is the
paper's way: its score network and predictor, 1000 steps of Euler-Maruyama with a Langevin step
each, guided to the end. That is extrapolated from a few steps. The last line is JSON.
"""

import argparse
import json
import statistics
import time

import torch

from fedtailor.core.rng import rng_for
from fedtailor.data.federation import load_federation
from fedtailor.data.options import DataOptions
from fedtailor.networks.initial import initialise
from fedtailor.runs.config import make_space
from fedtailor.search.diffusion import predictor as predictors
from fedtailor.search.diffusion import score_network as scores
from fedtailor.search.diffusion.encoder import features, load_encoder
from fedtailor.search.diffusion.generator import Generator, Sampling, shipped
from fedtailor.search.diffusion.guidance import guided
from fedtailor.search.diffusion.predictor import Predictor
from fedtailor.search.diffusion.score_network import ScoreNetwork
from fedtailor.search.diffusion.sde import VE, predictor_corrector
from fedtailor.search.diffusion.tokens import encoding, project, raw_valid

SPACES = ("mobilenetv3", "darts", "nasvit")
PAPER_STEPS, TRIED = 1000, 2
REPEATS = 3


def timed(generator: Generator, number: int, embedding: torch.Tensor, how: Sampling) -> dict:
    """Draw architectures some times; return the median time and the shares over all."""
    space, seconds, tables = generator.space, [], []
    for repeat in range(REPEATS):
        began = time.process_time()
        x = generator.tables(number, rng_for(repeat, "benchmark"), embedding, how)
        archs = project(space, x)
        seconds.append(time.process_time() - began)
        tables.append((x, archs))
    archs = [found for _, found in tables]
    return {
        "seconds": statistics.median(seconds),
        "legal": statistics.mean(space.repair(a) == a for found in archs for a in found),
        "raw_valid": statistics.mean(float(raw_valid(space, x).float().mean()) for x, _ in tables),
        "unique": statistics.mean(len(set(found)) / number for found in archs),
    }


def evaluations(generator: Generator, embedding: torch.Tensor, how: Sampling) -> dict[str, int]:
    """Count how often the networks see all architectures; the predictor is also differentiated."""
    counts = {"scores": 0, "predictions": 0}
    hooks = []
    for name, network in (("scores", generator.score), ("predictions", generator.predictor)):

        def count(*_: object, name: str = name) -> None:
            counts[name] += 1

        hooks.append(network.register_forward_hook(count))
    generator.tables(2, rng_for(0, "benchmark"), embedding, how)
    for hook in hooks:
        hook.remove()
    return counts


def paper_seconds(generator: Generator, number: int) -> float:
    """Return the time of the paper's networks and sampler, from two steps of it."""
    code, sde = encoding(generator.space), VE()
    score = ScoreNetwork(code, sde, scores.PAPER)
    predictor = Predictor(code, sde, 512, predictors.PAPER)
    for module in (score, predictor):
        initialise(module, rng_for(0, "weights"))
        module.eval().requires_grad_(requires_grad=False)
    followed = guided(score, predictor, torch.zeros(predictors.PAPER.set_width), 1.0, until=0.0)
    shape = (number, code.length, code.vocabulary)
    spent = []
    for steps in (TRIED, 2 * TRIED):
        began = time.process_time()
        predictor_corrector(sde, followed, shape, rng_for(0, "paper"), steps)
        spent.append(time.process_time() - began)
    return spent[0] + (spent[1] - spent[0]) / TRIED * (PAPER_STEPS - TRIED)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--number", type=int, default=100)
    parser.add_argument("--steps", type=int, default=Sampling().steps)
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    federation = load_federation(DataOptions(name="digits"))
    encoder, how = load_encoder(), Sampling(steps=wanted.steps)
    found: dict[str, dict] = {}
    for name in SPACES:
        generator = shipped(name, make_space({"name": name, "preset": "cpu"}))
        began = time.process_time()
        embedding = generator.embed(features(encoder, federation.examples(0, "train")))
        embed_s = time.process_time() - began
        timed(generator, wanted.number, embedding, how)  # the first time warms up
        found[name] = timed(generator, wanted.number, embedding, how) | {"embed_s": embed_s}
        found[name] |= evaluations(generator, embedding, how)
        found[name]["paper_s"] = paper_seconds(generator, wanted.number)
        print(name, json.dumps(found[name]), flush=True)
    result = {
        "name": "generator",
        **{key: max(one[key] for one in found.values()) for key in ("seconds", "embed_s")},
        **{
            key: min(one[key] for one in found.values()) for key in ("legal", "raw_valid", "unique")
        },
        **{key: max(one[key] for one in found.values()) for key in ("scores", "predictions")},
        "speedup": min(one["paper_s"] / one["seconds"] for one in found.values()),
        "extrapolated": ["paper_s"],
        "spaces": found,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
