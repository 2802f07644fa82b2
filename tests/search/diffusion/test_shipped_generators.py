"""The generators and the encoder that come with the package keep what their cards promise."""

import pytest
import torch

from fedtailor.core.errors import UserError
from fedtailor.core.registry import find
from fedtailor.core.space import Task
from fedtailor.data.federation import load_federation
from fedtailor.data.options import DataOptions
from fedtailor.search.diffusion.encoder import features, load_encoder
from fedtailor.search.diffusion.generator import (
    SHIPPED,
    DiffusionProposer,
    Generator,
    Sampling,
    shipped,
)
from fedtailor.search.diffusion.sde import EPSILON
from fedtailor.search.diffusion.tokens import encoding, one_hot, project, raw_valid
from fedtailor.search.evolution import Population
from fedtailor.spaces.darts import DARTS
from tests.helpers.made_up import cpu
from tests.helpers.made_up import generator as rng

SPACES = ("mobilenetv3", "darts", "nasvit")


@pytest.fixture(scope="module", params=SPACES)
def made(request: pytest.FixtureRequest) -> Generator:
    return shipped(request.param, cpu(request.param))


@pytest.fixture(scope="module")
def embeddings(made: Generator) -> list[torch.Tensor]:
    """Return those of three clients that have some digits each: data of another kind."""
    federation = load_federation(DataOptions(name="digits", clients=3, alpha=0.3))
    encoder = load_encoder()
    return [made.embed(features(encoder, federation.examples(c, "train"))) for c in range(3)]


def test_a_hundred_for_a_client_are_legal_valid_and_different(
    made: Generator, embeddings: list[torch.Tensor]
):
    tables = made.tables(100, rng(), embeddings[0])
    archs = project(made.space, tables)
    assert all(made.space.repair(arch) == arch for arch in archs)
    assert float(raw_valid(made.space, tables).double().mean()) >= 0.8
    assert len(set(archs)) >= 95


def test_guidance_raises_what_is_predicted_for_the_client(
    made: Generator, embeddings: list[torch.Tensor]
):
    def predicted(archs: list[tuple[int, ...]], data: torch.Tensor) -> float:
        x = made.score.to_diffused(one_hot(made.space, archs))
        with torch.no_grad():
            return float(made.predictor(x, torch.full((len(x),), EPSILON), data).mean())

    plain = made.architectures(60, rng(), embeddings[0], Sampling(strength=0.0))
    own = made.architectures(60, rng(), embeddings[0])
    assert predicted(own, embeddings[0]) > predicted(plain, embeddings[0]) + 0.5


def test_the_card_and_the_size(made: Generator):
    name = str(made.about["space"])
    assert len((SHIPPED / f"{name}.safetensors").read_bytes()) <= 4_000_000
    assert made.about["data"] == "cifar100" and made.about["recipe"] == "default"
    assert made.about["overrides"] == {} and made.about["encoder"] == load_encoder().digest
    assert made.about["guided"]["raw_valid"] >= 0.8 and made.about["guided"]["unique"] >= 0.95
    assert made.about["kendall_tau"]["own_likelihood"] > 0.05
    assert made.about["in_general"]["guided"] > made.about["in_general"]["unguided"]


@pytest.mark.parametrize("preset", ["default", "paper", "cpu"])
@pytest.mark.parametrize("name", SPACES)
def test_they_fit_every_preset_with_the_same_choices(name: str, preset: str):
    """Widths and resolutions are scaled; only NASViT's default has no choice of resolution."""
    kind = find("space", name)
    space = kind(**{"default": {}, **kind.presets}[preset])
    if (name, preset) == ("nasvit", "default"):
        with pytest.raises(UserError, match=r"^generator: .* is of a space with other choices; "):
            shipped(name, space)
        return
    own, theirs = encoding(space), encoding(cpu(name))
    for part in ("allowed", "stages", "places", "adjacency"):
        assert torch.equal(getattr(own, part), getattr(theirs, part))
    archs = shipped(name, space).architectures(4, rng(), how=Sampling(steps=2))
    assert all(space.repair(arch) == arch for arch in archs)


def test_other_operations_and_fewer_options_are_refused_in_one_sentence():
    for other in (DARTS(operations="s5"), DARTS(operations="s2"), DARTS(form="relaxed")):
        with pytest.raises(UserError) as error:
            shipped("darts", other)
        assert "is of a space with other choices" in str(error.value)
        assert "\n" not in str(error.value)


def test_proposals_are_in_the_form_of_the_space_that_is_searched():
    """The generator may have been read before the size of the images was known."""
    unsized = find("space", "mobilenetv3")()
    space = unsized.at(Task((1, 8, 8), 10))
    proposer = DiffusionProposer(shipped("mobilenetv3", unsized), how=Sampling(steps=2))
    found = proposer.propose(space, Population(), 4, rng())
    assert len(found) == 4 and all(space.repair(arch) == arch for arch in found)
