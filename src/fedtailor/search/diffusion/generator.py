"""A generator: architectures for a client's data, from noise, in about a second.

DiffusionNAG (An et al. 2024) and PerFedSDE-NAS (Liao et al., section 3.2): a score network turns
noise into architectures, and the gradient of a predictor's guess of their accuracy on the client's
data bends their way there. Both are trained once per search space (`fedtailor pretrain`) and then
used in any federation; the file holds nothing of a client. Differs from the papers: the probability
flow is followed by few steps of Heun's method where they take 1000 of Euler-Maruyama, and every
table is projected to a legal architecture where they throw illegal ones away.
"""

from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import safetensors
import torch
from annotated_types import Ge, Interval
from torch import Tensor

from fedtailor.core import codec
from fedtailor.core.errors import UserError
from fedtailor.core.space import Arch, SearchSpace
from fedtailor.core.types import Json, Tensors
from fedtailor.search import genes
from fedtailor.search.diffusion.encoder import Encoder, Features, load_encoder
from fedtailor.search.diffusion.evidence import SLOPE, informed
from fedtailor.search.diffusion.guidance import Expectation, guided
from fedtailor.search.diffusion.predictor import Predictor, PredictorSettings
from fedtailor.search.diffusion.score_network import ScoreNetwork, ScoreSettings, denoised
from fedtailor.search.diffusion.sde import EPSILON, SDE, euler_maruyama, heun, predictor_corrector
from fedtailor.search.diffusion.tokens import encoding, project
from fedtailor.search.evolution import Population, distinct

SAMPLERS = {"heun": heun, "euler": euler_maruyama, "langevin": predictor_corrector}
BATCHES = 4  # of a proposal: with as many, what is new among them has become rare
SHIPPED = resources.files("fedtailor") / "weights"
Guide: TypeAlias = Literal["data", "scores", "both", "none"]  # what bends the way


@dataclass(frozen=True)
class Sampling:
    """How architectures are drawn."""

    sampler: Literal["heun", "euler", "langevin"] = "heun"
    steps: Annotated[int, Ge(1)] = 10
    # of guidance beside the score; with 1, spaces of few choices such as nasvit give many repeats
    strength: Annotated[float, Interval(ge=0, le=10)] = 0.5


USUAL = Sampling()


@dataclass(frozen=True)
class Stored:
    """What a generator's file holds."""

    choices: Json  # [name, options] of each
    sde: SDE
    score: ScoreSettings
    predictor: PredictorSettings
    feature_size: int
    sampling: Sampling
    weights: Tensors
    about: Json  # how it was trained and how good it is
    check: str = ""  # the digest of all else


@dataclass(frozen=True, eq=False)
class Generator:
    """A trained score network and predictor of one search space."""

    space: SearchSpace
    score: ScoreNetwork
    predictor: Predictor
    about: dict[str, Any] = field(default_factory=dict)
    sampling: Sampling = USUAL  # unless told otherwise

    def embed(self, features: Features) -> Tensor:
        """Return the embedding of a client's data, which is the client's alone."""
        with torch.no_grad():
            return self.predictor.embed_features(features)

    def tables(
        self,
        number: int,
        rng: torch.Generator,
        embedding: Tensor | None = None,
        how: Sampling | None = None,
        guide: Expectation | None = None,
    ) -> Tensor:
        """Draw tables as they come out of the noise: (number, tokens, values), about 0 to 1.

        Args:
            number: of tables.
            rng: of the noise.
            embedding: of the client's data; none: for no data in particular.
            how: the sampling; none: the generator's own.
            guide: what expects scores, in place of the predictor.
        """
        code, sde, how = encoding(self.space), self.score.sde, how or self.sampling
        score = guided(self.score, guide or self.predictor, embedding, how.strength)
        shape = (number, code.length, code.vocabulary)
        x = SAMPLERS[how.sampler](sde, score, shape, rng, how.steps)
        with torch.no_grad():  # what noise is left at the end of time is taken off
            clean = denoised(sde, self.score, x, torch.full((number,), EPSILON))
        return self.score.from_diffused(clean)

    def architectures(
        self,
        number: int,
        rng: torch.Generator,
        embedding: Tensor | None = None,
        how: Sampling | None = None,
        guide: Expectation | None = None,
    ) -> list[Arch]:
        """Draw legal architectures; some may be equal."""
        return project(self.space, self.tables(number, rng, embedding, how, guide))


@dataclass(frozen=True, eq=False)
class DiffusionProposer:
    """Draws from a generator, guided by a client's data.

    Attributes:
        generator: of the space that is searched.
        embedding: of the client's data (`Generator.embed`); none: guided for no data in particular.
        how: the sampling; none: the generator's own.
        learn: whether the population's scores guide as well, beside the predictor.
        trust: how far the predictor is believed beside those scores; 0: they guide alone.
    """

    generator: Generator
    embedding: Tensor | None = None
    how: Sampling | None = None
    learn: bool = True
    trust: float = SLOPE

    def propose(
        self, space: SearchSpace, population: Population, number: int, rng: torch.Generator
    ) -> list[Arch]:
        """Return generated architectures; strangers make up the number where no new ones come."""
        if space.choices != self.generator.space.choices:
            raise ValueError("the generator is of another space")
        known, guide = set(population.archs), self.generator.predictor
        if self.learn:
            guide = informed(guide, space, population, self.embedding, rng, self.trust)
        found: dict[Arch, None] = {}
        for _ in range(BATCHES):
            drawn = self.generator.architectures(number, rng, self.embedding, self.how, guide)
            own = map(space.repair, drawn)  # the generator's may not know the images' size
            found |= dict.fromkeys(arch for arch in own if arch not in known)
            if len(found) >= number:
                return list(found)[:number]
        rest = number - len(found)
        strangers = distinct(space, lambda: genes.sample(space, rng), rest, known.union(found), rng)
        return [*found, *strangers]


def guided_proposer(
    generator: Generator, guide: Guide, embedding: Tensor | None
) -> DiffusionProposer:
    """Return a proposer guided by the client's data, its population's scores, by both or none."""
    if guide == "none":
        unguided = replace(generator.sampling, strength=0.0)
        return DiffusionProposer(generator, None, unguided, learn=False)
    if guide == "scores":
        return DiffusionProposer(generator, trust=0.0)
    return DiffusionProposer(generator, embedding, learn=guide == "both")


def encoder_of(generator: Generator, file: str | Path | None = None) -> Encoder:
    """Return the encoder that a generator was made with: features of others say nothing to it."""
    encoder = load_encoder(None if file is None else Path(file))
    fits = encoder.size == generator.predictor.feature_size
    if not fits or generator.about.get("encoder", encoder.digest) != encoder.digest:
        raise UserError(
            "encoder: the generator was made with another one; give the weights of that, or make a "
            "generator with `fedtailor pretrain --encoder`"
        )
    return encoder


def rounded(generator: Generator) -> Generator:
    """Round a generator's numbers, in place, as its file will have them."""
    for module in (generator.score, generator.predictor):
        module.load_state_dict({name: _rounded(t) for name, t in module.state_dict().items()})
    return generator


def save(generator: Generator, path: Path) -> None:
    """Write a generator to a file, its numbers rounded to 16 bits."""
    space, predictor = generator.space, generator.predictor
    parts = {"score": generator.score, "predictor": predictor}
    weights = {
        f"{part}.{name}": _rounded(tensor).cpu()
        for part, module in parts.items()
        for name, tensor in module.state_dict().items()
    }
    found = Stored(
        _choices(space),
        generator.score.sde,
        generator.score.settings,
        predictor.settings,
        predictor.feature_size,
        generator.sampling,
        weights,
        generator.about,
    )
    found = replace(found, check=codec.digest(found))
    try:
        codec.write_whole(path, found)
    except (OSError, safetensors.SafetensorError) as error:
        raise UserError(f"{path}: cannot be written ({error})") from None


def load(path: Path, space: SearchSpace) -> Generator:
    """Read a generator for a space: of any preset whose choices are the same but for numbers."""
    found = _read(path)
    if _without_numbers(found.choices) != _without_numbers(_choices(space)):
        raise UserError(
            f"generator: {path} is of a space with other choices; `fedtailor pretrain` makes one"
        )
    code = encoding(space)
    try:
        score = ScoreNetwork(code, found.sde, found.score)
        predictor = Predictor(code, found.sde, found.feature_size, found.predictor)
        for part, module in {"score": score, "predictor": predictor}.items():
            of, named = len(part) + 1, found.weights.items()
            module.load_state_dict({n[of:]: t for n, t in named if n.startswith(f"{part}.")})
            module.eval().requires_grad_(requires_grad=False)
    except (RuntimeError, TypeError, ValueError, AttributeError):  # of torch, in many lines
        raise UserError(
            f"generator: the weights in {path} do not fit its settings; `fedtailor pretrain` makes "
            "another"
        ) from None
    return Generator(space, score, predictor, found.about, found.sampling)


def shipped(name: str, space: SearchSpace) -> Generator:
    """Return the generator that comes with the package for a space."""
    path = Path(str(SHIPPED / f"{name}.safetensors"))
    if not path.exists():
        raise UserError(
            f"space: no generator comes with the package for {name}; `fedtailor pretrain "
            f"--space {name}` makes one, and --generator names its file"
        )
    return load(path, space)


def _rounded(tensor: Tensor) -> Tensor:
    """Round to 16 bits what these can hold: no indices, and no numbers beyond 65504."""
    half = tensor.half() if tensor.is_floating_point() else tensor
    return half if half.isfinite().all() else tensor


def _read(path: Path) -> Stored:
    """Read a generator's file, or say in one sentence that it is none."""
    if not path.is_file():
        raise UserError(f"generator: there is no file {path}")
    try:
        found = codec.read(Stored, path)
        if found.check == codec.digest(replace(found, check="")):
            return found
    except (UserError, OSError, AttributeError):  # the last where JSON of another kind was read
        pass
    raise UserError(
        f"generator: {path} is damaged or no generator's file; `fedtailor pretrain` makes one"
    )


def _choices(space: SearchSpace) -> Json:
    return [[choice.name, list(choice.options)] for choice in space.choices]


def _without_numbers(choices: Json) -> Json:
    """Leave out what presets scale: to a generator an option is the n-th, from small to large."""
    return [
        [name, [option if isinstance(option, str) else None for option in options]]
        for name, options in choices
    ]
