"""The verbs of the generator of architectures: pretrain and generate."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedtailor.cli.common import AsJson, fail, print_json

if TYPE_CHECKING:
    from fedtailor.pretrain.generators import PretrainRequest
    from fedtailor.search.diffusion.generator import Generator


def pretrain(
    *overrides: str,
    space: str,
    data: str,
    out: Path | None = None,
    supernet: Path | None = None,
    preset: str | None = None,
    recipe: str = "default",
    weights: Path | None = None,
    encoder: Path | None = None,
    workers: int = 2,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    as_json: AsJson = False,
) -> None:
    """Make a generator of architectures for a search space; it serves any federation after.

    Four stages: a supernet is trained on the data, architectures are tested with its weights on
    many sub-tasks, a score network learns which architectures there are, and a predictor which of
    them suit which data. With --supernet and without --out the first is done alone, in a quarter of
    the time. Ctrl-C is safe: the same command goes on from the folder OUT.work (or SUPERNET.work).
    Generators for mobilenetv3, darts and nasvit come with the package. For example:

    fedtailor pretrain --space mobilenetv3 --data cifar100 --out mine.safetensors

    fedtailor generate --space mobilenetv3 --generator mine.safetensors

    fedtailor pretrain --space mobilenetv3 --data cifar100 --supernet warm.safetensors

    fedtailor run my.toml space.name=mobilenetv3 space.preset=cpu space.init=warm.safetensors

    Args:
        overrides: key=value of the recipe, such as supernet.epochs=2 or archs=500.
        space: the search space.
        data: the name of a data set, or a path as data.path.
        out: the generator's file.
        supernet: a file for the supernet's weights and batch-norm statistics, as space.init takes
            it; with --out beside the generator, else alone.
        preset: of the space; else cpu where there is one.
        recipe: default, or paper for the published sizes (days of computing).
        weights: a supernet's weights (safetensors) trained on the same data, instead of training.
        encoder: ResNet-18 weights (torchvision's file), instead of the package's small encoder.
        workers: processes that share the work; the result does not depend on them.
        device: where networks are trained: auto, cpu or cuda.
        as_json: print the generator's card as JSON; of a supernet alone its file, size and hash.
    """
    from fedtailor.pretrain import generators

    request = generators.PretrainRequest(
        space, data, out, preset, recipe, weights, encoder, workers, device, supernet
    )
    made = _made(request, overrides)
    if as_json:
        print_json(generators.supernet_card(request.file) if made is None else made.about)
        return
    card = [] if made is None else generators.card_lines(made.about)
    print("\n".join([*card, *generators.next_lines(request)]))


def _made(request: "PretrainRequest", overrides: tuple[str, ...]) -> "Generator | None":
    """Make what is asked for and show how far it is; of a supernet alone there is no generator."""
    from fedtailor.core.validation import parse_override
    from fedtailor.experiment.following import living
    from fedtailor.pretrain import generators

    file, now = request.file, ["reading"]
    try:
        with living(lambda: f"{file.name}: {now[0]}"):
            return generators.make(
                request,
                dict(parse_override(text) for text in overrides),
                lambda stage, done, of: now.__setitem__(0, f"{stage} {done}/{of}"),
            )
    except KeyboardInterrupt:
        fail(f"stopped; the same command goes on from {generators.work_folder(file)}", 130)


def generate(
    *overrides: str,
    space: str,
    n: int = 10,
    data: str | None = None,
    client: str | None = None,
    preset: str | None = None,
    generator: Path | None = None,
    encoder: Path | None = None,
    cache: Path | None = None,
    sampler: str | None = None,
    steps: int | None = None,
    strength: float | None = None,
    seed: int = 0,
    as_json: AsJson = False,
) -> None:
    """Draw architectures for a client's data from a generator, in about a second.

    Each is a line: its parameters, its multiply-adds, and the architecture as space.arch takes it;
    --json has every choice by name. For example, for client 3 of 20 that share CIFAR-10 unevenly:

    fedtailor generate --space mobilenetv3 --data cifar10 --client 3 clients=20 alpha=0.3

    Args:
        overrides: key=value of [data], such as clients=20.
        space: the search space.
        n: how many.
        data: the name of a data set, or a path; without it, for no data in particular.
        client: the client whose training images count, by name or number; else the first.
        preset: of the space; else cpu where there is one.
        generator: a file from `fedtailor pretrain`, instead of the package's own.
        encoder: the weights that the generator was made with, where not the package's own.
        cache: a folder in which features of the client's images are kept for the next time.
        sampler: heun, euler or langevin; else what the generator was made with, heun by default.
        steps: of the sampler; else as the generator was made with, 10 by default.
        strength: of the guidance by the predicted accuracy, 0.5 by default; 0: none.
        seed: of the draw.
        as_json: print JSON for scripts.
    """
    from fedtailor.core.validation import parse_override
    from fedtailor.pretrain import drawing

    options = dict(parse_override(text) for text in overrides)
    request = drawing.GenerateRequest(
        space, n, data, client, preset, generator, encoder, cache, seed
    )
    how = {"sampler": sampler, "steps": steps, "strength": strength}
    found = drawing.draw(request, how, options)
    if as_json:
        print_json(found.table())
        return
    for text in found.lines():
        print(text)
    print("\n".join(found.told()), file=sys.stderr)
