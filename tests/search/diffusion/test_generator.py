"""A generator's draws, its file, and its place among the proposers."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor

from fedtailor.core import codec
from fedtailor.core.errors import UserError
from fedtailor.core.space import Choice, SearchSpace
from fedtailor.networks.initial import initialise
from fedtailor.search import genes
from fedtailor.search.diffusion.encoder import Features
from fedtailor.search.diffusion.generator import (
    DiffusionProposer,
    Generator,
    Sampling,
    Stored,
    load,
    save,
    shipped,
)
from fedtailor.search.diffusion.predictor import Predictor
from fedtailor.search.diffusion.score_network import ScoreNetwork
from fedtailor.search.diffusion.sde import VE
from fedtailor.search.diffusion.tokens import encode, encoding, project
from fedtailor.search.evolution import Population
from tests.helpers import tiny_generator
from tests.helpers.made_up import SMALL, Coin, Free, Layers, cpu
from tests.helpers.made_up import generator as rng

QUICK = Sampling(steps=4)
SPACE = cpu("mobilenetv3")


def embedding(of: Generator, seed: int = 1) -> Tensor:
    return torch.randn(of.predictor.settings.set_width, generator=rng(seed))


@pytest.fixture(scope="module")
def made() -> Generator:
    return tiny_generator.generator(SPACE)


def rounded(of: Generator) -> Generator:
    """Return a generator whose weights are what 16 bits leave of another's."""
    other = tiny_generator.generator(of.space, seed=9)
    pairs = ((of.score, other.score), (of.predictor, other.predictor))
    for theirs, own in pairs:
        own.load_state_dict({name: t.half().float() for name, t in theirs.state_dict().items()})
    return other


# draws


@pytest.mark.parametrize("sampler", ["heun", "euler", "langevin"])
def test_a_seed_decides_and_nothing_else_is_drawn(made: Generator, sampler: str):
    how = Sampling(sampler, 3)  # pyright: ignore[reportArgumentType]
    before = torch.random.get_rng_state()
    first, again, other = (made.tables(6, rng(seed), embedding(made), how) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(before, torch.random.get_rng_state())
    assert made.architectures(6, rng(1), embedding(made), how) == project(SPACE, first)


def test_data_matter_unless_the_strength_is_0(made: Generator):
    data = (None, embedding(made, 1), embedding(made, 2))
    guided = [made.tables(4, rng(), each, QUICK) for each in data]
    unguided = [made.tables(4, rng(), each, replace(QUICK, strength=0.0)) for each in data]
    assert not torch.equal(guided[1], guided[2]) and not torch.equal(guided[0], guided[1])
    assert torch.equal(unguided[0], unguided[1]) and torch.equal(unguided[0], unguided[2])
    assert not torch.equal(guided[1], unguided[1])


def test_the_noise_that_is_left_at_the_end_is_taken_off(made: Generator):
    """Rows are all but certain; with the SDE's least noise, of 0.1, they would not be."""
    tables = made.tables(50, rng(), None, Sampling(strength=0.0))
    assert ((tables - tables.round()).abs() < 0.01).float().mean() > 0.95


def test_the_embedding_is_the_predictors_and_has_no_gradient(made: Generator):
    data = Features(torch.randn(7, 12, generator=rng()), torch.tensor([0, 0, 0, 3, 3, 5, 5]))
    found = made.embed(data)
    assert torch.equal(found, made.predictor.embed_features(data)) and not found.requires_grad


@dataclass(frozen=True)
class Eight(Free):
    """Eight choices of four, all of them legal and alike."""

    @property
    def choices(self) -> tuple[Choice, ...]:
        return tuple(Choice(f"gene{number}", (0, 1, 2, 3)) for number in range(8))


def test_every_client_gets_what_is_good_on_its_own_data():
    """Two clients want different values: the truth is a sum of effects, which is predicted."""
    space, code = Eight(), encoding(Eight())
    score = ScoreNetwork(code, VE(), tiny_generator.SCORE)
    predictor = Predictor(code, VE(), 12, tiny_generator.PREDICTOR)
    initialise(score, rng())  # it begins as the exact score of independent, uniform tokens
    assert predictor.effects is not None
    worth = torch.randn(2, 8, 4, generator=rng(3))
    with torch.no_grad():  # all other weights are 0: what is predicted is the truth
        predictor.effects.values.copy_(worth.flatten(1))
        predictor.effects.data.weight[:2, :2] = torch.eye(2)
    found = Generator(space, score, predictor)
    clients = torch.eye(tiny_generator.PREDICTOR.set_width)[:2]

    def truths(data: Tensor, strength: float) -> Tensor:
        drawn = found.architectures(100, rng(), data, Sampling(strength=strength))
        values = encode(space, drawn)
        return torch.stack([of[torch.arange(8), values].sum(1) for of in worth])

    chance = truths(clients[0], 0.0)
    for own in (0, 1):
        means = [truths(clients[own], strength)[own].mean() for strength in (0.0, 0.5, 1.0, 2.0)]
        other = truths(clients[1 - own], 1.0)[own].mean()
        assert means == sorted(means)
        assert means[2] > means[0] + chance[own].std()
        assert means[2] > other + chance[own].std()


# files


@pytest.mark.parametrize("space", [SPACE, cpu("darts"), Free(), Layers()], ids=repr)
def test_a_file_gives_the_same_generator_rounded(space: SearchSpace, tmp_path: Path):
    path, before = tmp_path / "generator.safetensors", tiny_generator.generator(space)
    save(before, path)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    found, wanted = load(path, space), rounded(before)
    assert found.about == before.about and found.score.sde == before.score.sde
    assert found.score.settings == before.score.settings
    assert found.predictor.settings == before.predictor.settings
    for part in ("score", "predictor"):
        own, theirs = (getattr(each, part).state_dict() for each in (found, wanted))
        assert own.keys() == theirs.keys() and own["shares"].dtype == torch.float32
        assert all(torch.equal(own[name], theirs[name]) for name in own)
    data = embedding(before)
    tables = [each.tables(40, rng(), data, QUICK) for each in (found, wanted, before)]
    assert torch.equal(tables[0], tables[1])
    values = [encode(space, project(space, table)) for table in tables]
    assert (values[0] == values[2]).float().mean() > 0.95, "rounding decides little"
    save(found, tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()


def test_a_file_serves_all_presets_of_the_same_choices_and_trains_nothing(
    made: Generator, tmp_path: Path
):
    path, default = tmp_path / "generator.safetensors", type(SPACE)()
    save(made, path)
    assert default != SPACE and default.choices == SPACE.choices
    found = load(path, default)
    assert found.space == default
    for module in (found.score, found.predictor):
        assert not module.training and not any(p.requires_grad for p in module.parameters())


def test_numbers_that_16_bits_cannot_hold_are_kept(tmp_path: Path):
    made = tiny_generator.generator(Free())
    made.score.ratios[0, 0, 0] = 1e6
    save(made, tmp_path / "generator.safetensors")
    found = load(tmp_path / "generator.safetensors", Free())
    assert torch.equal(found.score.ratios, made.score.ratios)


def test_another_space_is_refused_in_one_sentence(made: Generator, tmp_path: Path):
    path = tmp_path / "generator.safetensors"
    save(made, path)
    for other in (cpu("darts"), Free(), Coin()):
        with pytest.raises(UserError) as error:
            load(path, other)
        assert str(error.value) == (
            f"generator: {path} is of a space with other choices; `fedtailor pretrain` makes one"
        )
    with pytest.raises(ValueError, match="another space"):
        DiffusionProposer(made).propose(Free(), Population(), 2, rng())


def signed(path: Path, stored: Stored) -> None:
    """Write a file that someone made, not one that was damaged."""
    stored = replace(stored, check="")
    codec.write(path, replace(stored, check=codec.digest(stored)))


def spoil(path: Path, how: str) -> None:
    """Turn a generator's file into something else."""
    content = path.read_bytes()
    stored = codec.read(Stored, path)
    match how:
        case "empty":
            path.write_bytes(b"")
        case "short":
            path.write_bytes(content[:-10])
        case "header":
            path.write_bytes(content[:100])
        case "garbage":
            path.write_bytes(bytes(reversed(content)))
        case "text":
            path.write_text("space = 'mobilenetv3'\n")
        case "plain tensors":
            safetensors.torch.save_file({"weight": torch.ones(3)}, path)
        case "other json":
            safetensors.torch.save_file({"weight": torch.ones(3)}, path, {codec.TREE: "3"})
        case "other file":
            codec.write(path, Choice("a", (1, 2)))
        case "not finite":
            stored.weights["score.shares"][0, 0] = math.nan
            codec.write(path, stored)
        case "lacks weights":
            del stored.weights["score.shares"]
            codec.write(path, stored)
        case "a bit":
            stored.weights["score.parents"].view(torch.uint8).flatten()[2] ^= 1
            codec.write(path, stored)
        case "other sizes":
            signed(path, replace(stored, score=replace(stored.score, width=16)))
        case "impossible sizes":
            signed(path, replace(stored, score=replace(stored.score, width=9)))
        case "no sizes":
            signed(path, replace(stored, predictor=None))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "how",
    [
        *("empty", "short", "header", "garbage", "text", "plain tensors", "other json"),
        *("other file", "not finite", "lacks weights", "other sizes", "impossible sizes"),
        *("a bit", "no sizes"),
    ],
)
def test_files_that_are_no_generator_are_a_sentence(how: str, tmp_path: Path):
    path = tmp_path / "generator.safetensors"
    save(tiny_generator.generator(Free()), path)
    spoil(path, how)
    with pytest.raises(UserError) as error:
        load(path, Free())
    said = str(error.value)
    assert said.startswith("generator: ") and str(path) in said and len(said.splitlines()) == 1
    assert "damaged or no generator's file" in said or "do not fit its settings" in said


def test_no_file_and_no_place_for_one(tmp_path: Path):
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(UserError, match="generator: there is no file"):
            load(path, Free())
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "x"):
        with pytest.raises(UserError, match="cannot be written"):
            save(tiny_generator.generator(Free()), path)
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_a_space_without_a_generator_in_the_package():
    name = "mobilenetv3_plato"
    with pytest.raises(UserError) as error:
        shipped(name, cpu(name))
    assert str(error.value) == (
        "space: no generator comes with the package for mobilenetv3_plato; `fedtailor pretrain "
        "--space mobilenetv3_plato` makes one, and --generator names its file"
    )


# proposals


def test_proposals_are_what_is_drawn_but_for_repeats_and_known_ones(made: Generator):
    data = embedding(made)
    drawn = made.architectures(20, rng(), data, QUICK)
    assert len(set(drawn)) == 20
    proposer = DiffusionProposer(made, data, QUICK)
    assert proposer.propose(SPACE, Population(), 20, rng()) == drawn
    known = Population(tuple(drawn[:5]), (0.0,) * 5)
    found = proposer.propose(SPACE, known, 20, rng())
    assert found[:15] == drawn[5:] and len(set(found)) == 20
    assert not set(found) & set(known.archs)
    assert all(genes.is_legal(SPACE, arch) for arch in found)


@pytest.mark.parametrize("space", [Coin(), Free(), *SMALL.values()], ids=repr)
@pytest.mark.parametrize("known", [0.0, 0.5, 1.0])
def test_small_spaces_are_exhausted_before_there_are_repeats(space: SearchSpace, known: float):
    every = list(genes.enumerate_all(space))
    archs = tuple(every[: round(known * len(every))])
    population = Population(archs, (1.0,) * len(archs))
    proposer = DiffusionProposer(tiny_generator.generator(space), how=Sampling(steps=1))
    left = set(every) - set(archs)
    for number in (0, 1, len(left), len(every) + 3):
        found = proposer.propose(space, population, number, rng())
        assert len(found) == number and all(genes.is_legal(space, arch) for arch in found)
        new = min(number, len(left))
        assert len(set(found[:new]) & left) == new, "the new ones come first, once each"


def test_strangers_make_up_the_number_where_a_generator_says_always_the_same():
    made = tiny_generator.generator(Free())
    made.score.shares.zero_()[:, 0] = 1.0  # nothing but the first values occurs
    proposer = DiffusionProposer(made, how=replace(QUICK, strength=0.0))
    assert set(made.architectures(9, rng(), None, proposer.how)) == {(0, 0, 0)}
    found = proposer.propose(Free(), Population(), 9, rng())
    assert found[0] == (0, 0, 0) and len(set(found)) == 9
