"""Generators as users meet them: the verbs `pretrain` and `generate`, and what stands behind."""

import dataclasses
import hashlib
import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedtailor.cli import app
from fedtailor.cli.app import main
from fedtailor.core.errors import UserError
from fedtailor.core.rng import rng_for
from fedtailor.core.validation import flatten, parse_override
from fedtailor.experiment import following
from fedtailor.pretrain import generators
from fedtailor.pretrain.drawing import Generated, GenerateRequest
from fedtailor.pretrain.generators import (
    PretrainRequest,
    card_lines,
    data_options,
    recipe,
)
from fedtailor.pretrain.settings import DEFAULT, PAPER, SUPERNETS
from fedtailor.runs.config import make_space
from fedtailor.search import genes
from fedtailor.search.arch_text import read_arch
from fedtailor.search.diffusion.encoder_networks import SMALL_FEATURES
from fedtailor.search.diffusion.generator import Sampling, load, save
from tests.helpers import tiny_generator
from tests.helpers.made_up import Free

SPACE = f"{Path(__file__).parents[1] / 'helpers' / 'tiny_space.py'}:Tiny"


def words() -> list[str]:
    """Return the overrides that make the usual recipe the tiny one."""
    tiny, usual = (flatten(dataclasses.asdict(each)) for each in (tiny_generator.TINY, DEFAULT))
    changed = {key: value for key, value in tiny.items() if value != usual[key]}
    return [f"{key}={json.dumps(value)}" for key, value in changed.items()]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of a generator for 216 architectures, made from digits."""
    out = tmp_path_factory.mktemp("made") / "tiny.safetensors"
    changes = dict(parse_override(text) for text in words())
    generators.make(PretrainRequest(SPACE, "digits", out, "default", workers=1), changes)
    return out


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return what runs the command line and returns what it printed."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object, code: int = 0) -> tuple[str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, errors = capsys.readouterr()
        assert ended.value.code == code, errors
        return out, errors

    return run


def generate(file: Path, *more: object) -> list[object]:
    own = ["--space", SPACE, "--preset", "default", "--generator", file]
    return ["generate", *own, "--steps", 3, *more]


# pretrain


def test_pretrain_writes_a_file_prints_its_card_and_progress_beside(
    file: Path, say: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(following, "LINE_EVERY_S", 0.01)
    order = ["pretrain", "--space", SPACE, "--preset", "default", "--data", "digits"]
    order += ["--out", tmp_path / "own.safetensors", "--workers", 1, *words()]
    out, errors = say(*order, "--json")
    card = json.loads(out)
    assert card["space"] == SPACE and card["preset"] == "default" and card["data"] == "digits"
    assert (tmp_path / "own.safetensors").read_bytes() == file.read_bytes(), "as from Python"
    assert load(file, make_space({"name": SPACE})).about == card
    lines = errors.splitlines()
    assert lines and all(line.startswith("own.safetensors: ") for line in lines)
    assert any(f"own.safetensors: {stage} " in errors for stage in ("supernet", "table", "score"))
    text, _ = say(*order)
    assert text.splitlines() == [
        *card_lines(card),
        "wrote {0}; next: fedtailor generate --space {1} --generator {0} --preset default".format(
            tmp_path / "own.safetensors", SPACE
        ),
    ]
    drawn, _ = say(*text.splitlines()[-1].split("next: fedtailor ")[1].split(), "--n", 3)
    assert len(drawn.splitlines()) == 4, "a head and a line for each"


def test_a_supernet_is_written_alone_or_beside_the_generator(file: Path, say: Any, tmp_path: Path):
    order = ["pretrain", "--space", SPACE, "--data", "digits", "--workers", 1, *words()]
    alone, beside = tmp_path / "alone.safetensors", tmp_path / "beside.safetensors"
    text, _ = say(*order, "--supernet", alone)
    start = f"space.name={SPACE} space.preset=default space.init={alone}"
    assert text == f"wrote {alone}; next: fedtailor run CONFIG {start}\n"
    assert {path.name for path in tmp_path.iterdir()} == {alone.name, f"{alone.name}.work"}
    card = json.loads(say(*order, "--supernet", alone, "--json")[0])
    content = alone.read_bytes()
    hashed = hashlib.sha256(content).hexdigest()
    assert card == {"supernet": str(alone), "sha256": hashed, "bytes": len(content)}
    made = tmp_path / "own.safetensors"
    text, _ = say(*order, "--preset", "default", "--supernet", beside, "--out", made)
    assert made.read_bytes() == file.read_bytes() and beside.read_bytes() == content
    told = text.splitlines()[-2:]
    assert [line.split("; ")[0] for line in told] == [f"wrote {beside}", f"wrote {made}"]
    assert (tmp_path / f"{made.name}.work").is_dir()
    assert not (tmp_path / f"{beside.name}.work").exists()


def test_ctrl_c_says_how_to_go_on(say: Any, monkeypatch: pytest.MonkeyPatch):
    def make(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(generators, "make", make)
    order = ["pretrain", "--space", "darts", "--data", "digits", "--supernet", "a/s"]
    for more, file in ((["--out", "a/b"], "a/b"), ([], "a/s")):
        _, errors = say(*order, *more, code=130)
        assert errors == f"fedtailor: stopped; the same command goes on from {file}.work\n"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"--space": "dart"}, "space.name: no space is called 'dart'; did you mean darts?"),
        (
            {"--space": "cnn"},
            "space: cnn is a fixed model, there is nothing",
        ),
        ({"--space": "nothing.py:X"}, "space.name: "),
        ({"--preset": "gpu"}, "space.preset: no preset is called 'gpu'; did you mean cpu?"),
        ({"--data": "digit"}, "data: no data set and no path is 'digit'; did you mean digits?"),
        ({"--recipe": "papers"}, "recipe: none is called 'papers'; did you mean paper?"),
        ({"--weights": "nothing"}, "weights: there is no file nothing"),
        ({"--encoder": "nothing"}, "encoder: there is no file nothing"),
        ({"--workers": "0"}, "workers: must be at least 1, not 0"),
        ({"--workers": "many"}, "many"),
        ({"--out": "."}, "out: . is a folder; give the name of a file"),
        ({"--supernet": "."}, "supernet: . is a folder; give the name of a file"),
        ({"--supernet": "x.safetensors"}, "supernet: x.safetensors is the generator's file; give"),
        (
            {"--out": ""},
            "out: name the generator's file by --out, its supernet's by --supernet, or",
        ),
        (
            {"--out": "", "--supernet": "s", "--encoder": "e"},
            "encoder: is about the generator; give --out as well",
        ),
        ({"--out": "", "--supernet": "s", "--weights": "w"}, "weights: there is no file w"),
        ({"": "archs"}, "an override is written key=value"),
        ({"": "archs=3"}, "pretrain.archs: input should be greater than or equal to 4, not 3"),
        ({"": "arch=3"}, "pretrain.arch: unknown; did you mean archs?"),
        ({"": "supernet.epoch=3"}, "pretrain.supernet.epoch: unknown; did you mean epochs?"),
        ({"": "supernet={lrr=3}"}, "pretrain.supernet.lrr: unknown; did you mean lr?"),
        ({"": "supernet=3"}, "pretrain.supernet: "),
        ({"": "seed.x=3"}, "seed.x: seed is not a table"),
        ({"": "images=1797"}, "pretrain.images: 1797 images are to be held out of 1797"),
        ({"": "score.width=65"}, "pretrain.score: width must be even"),
        ({"": "images=1"}, "pretrain.images: too few to train and to judge by"),
        ({"": "draw.alphas=[1,0.1]"}, "pretrain.draw.alphas: [1.0, 0.1]: the first must not be"),
    ],
)
def test_what_is_wrong_with_an_order_is_a_sentence(
    changes: dict[str, str], says: str, say: Any, tmp_path: Path
):
    order = {"--space": "darts", "--data": "digits", "--out": "x.safetensors"} | changes
    named = [word for pair in order.items() for word in pair if all(pair)]
    free = ["images=100", *(value for key, value in order.items() if not key)]
    out, errors = say("pretrain", *free, *named, code=2)
    assert says in errors and len(errors.splitlines()) == 1 and out == ""
    assert not list(tmp_path.iterdir()), "nothing is written"


def test_what_is_missing_of_an_order_is_a_sentence(say: Any):
    for words in (["--data", "digits", "--out", "x"], ["--space", "darts", "--out", "x"]):
        _, errors = say("pretrain", *words, code=2)
        assert "requires an argument" in errors and len(errors.splitlines()) == 1


def test_recipes_and_their_overrides():
    assert recipe("default", "nasvit", {}) == DEFAULT and recipe("paper", "darts", {}) == PAPER
    assert recipe("default", "darts", {}).supernet == SUPERNETS["darts"] != DEFAULT.supernet
    found = recipe(
        "paper", "darts", {"supernet.epochs": 2, "draw": {"alphas": [0.5, 2]}, "seed": 7}
    )
    assert found == dataclasses.replace(
        PAPER,
        supernet=dataclasses.replace(PAPER.supernet, epochs=2.0),
        draw=dataclasses.replace(PAPER.draw, alphas=(0.5, 2.0)),
        seed=7,
    )
    tiny = recipe("default", SPACE, dict(parse_override(text) for text in words()))
    assert tiny == tiny_generator.TINY
    with pytest.raises(UserError, match=r"^pretrain\.sampling\.step: unknown; did you mean steps"):
        recipe("default", SPACE, {"sampling": {"step": 3}})


def test_data_are_a_name_or_a_path(tmp_path: Path):
    assert data_options("digits").name == "digits" and data_options("digits").path is None
    assert data_options(str(tmp_path)).path == str(tmp_path)
    assert data_options("my.py:load").path == "my.py:load"
    assert data_options("digits", {"clients": 3, "alpha": 1}).clients == 3
    with pytest.raises(UserError, match=r"^data\.client: unknown; did you mean clients\?"):
        data_options("digits", {"client": 3})
    with pytest.raises(UserError, match=r"^data: no data set and no path is 'cifar'"):
        data_options("cifar")


def test_a_card_leaves_out_what_was_not_judged():
    about = {"space": "a", "preset": "b", "data": "c", "accuracy": {"guided": [0.5, 0.25]}}
    assert card_lines(about) == ["a (b), made from c", "accuracy     guided 0.375"]
    assert card_lines(about | {"accuracy": {}}) == ["a (b), made from c"]


# generate


def test_generate_prints_architectures_and_one_json_document(file: Path, say: Any):
    out, errors = say(*generate(file, "--n", 7, "--json"))
    found, space = json.loads(out), make_space({"name": SPACE})
    assert errors == "" and len(found["architectures"]) == 7
    for each in found["architectures"]:
        arch = tuple(each["genes"])
        assert genes.is_legal(space, arch)
        options = zip(space.choices, arch, strict=True)
        assert each["architecture"] == {c.name: c.options[gene] for c, gene in options}
    assert 0 <= found["raw_valid"] <= 1 and 0 < found["unique"] <= 1
    assert found["seconds"] >= 0 and found["embed_seconds"] >= 0
    text, errors = say(*generate(file, "--n", 7))
    for line, each in zip(text.splitlines()[1:], found["architectures"], strict=True):
        parameters, macs, arch = line.split(maxsplit=2)
        assert arch == each["text"] and read_arch(space, arch) == tuple(each["genes"])
        assert int(parameters.replace(",", "")) == each["parameters"] > 0
        assert float(macs.replace(",", "")) == pytest.approx(each["macs"] / 1e6, abs=0.006)
    assert errors.startswith("7 architectures in ") and "3x32x32 images" in errors


def test_seed_strength_and_client_decide(file: Path, say: Any):
    def drawn(*more: object) -> str:
        found = json.loads(say(*generate(file, "--n", 40, "--json", *more))[0])
        return str([each["genes"] for each in found["architectures"]])

    data = ["--data", "digits", "clients=3", "alpha=0.1", "--strength", 10]
    first = drawn(*data, "--client", 0)
    assert first == drawn(*data, "--client", 0)
    assert len({first, drawn(*data, "--client", 2), drawn(*data, "--seed", 1)}) == 3
    assert drawn("--strength", 0) == drawn(*data[:4], "--strength", 0), "no guidance, no data"
    assert drawn() != drawn("--strength", 0), "guided for no data in particular"


def test_the_command_line_draws_as_the_library_does_unless_told(file: Path, say: Any):
    usual = {key: each.default for key, each in inspect.signature(app.generate).parameters.items()}
    wanted = {f.name: f.default for f in dataclasses.fields(GenerateRequest)}
    assert usual["n"] == wanted["number"]
    for name in ("data", "client", "preset", "generator", "encoder", "seed"):
        assert usual[name] == wanted[name]
    made = load(file, make_space({"name": SPACE}))
    assert made.sampling == tiny_generator.TINY.sampling != Sampling(), "as it was made"
    order = ["generate", "--space", SPACE, "--generator", file, "--n", 5, "--json"]
    for words, how in (
        ([], made.sampling),
        (["--sampler", "euler", "--steps", 4], Sampling("euler", 4)),
        (["--strength", 0], dataclasses.replace(made.sampling, strength=0.0)),
    ):
        found = json.loads(say(*order, *words)[0])["architectures"]
        expected = made.architectures(5, rng_for(0, "generate"), None, how)
        assert [tuple(each["genes"]) for each in found] == expected


def test_what_data_is_worth_is_told_with_its_error():
    card = {"accuracy": {"guided": [0.5, 0.7, 0.9], "for others": [0.4, 0.7, 0.7]}}
    found = Generated(Free(), [(2, 1, 2)], 1.0, 0.0, 0.0, card=card)
    assert found.worth == pytest.approx({"points": 10.0, "error": 10 / 3**0.5, "tasks": 3})
    said = "did no better than those drawn for other tasks (+10.0 ± 5.8 points)"
    assert found.told()[-1].endswith(said)
    sure = {"accuracy": {"guided": [0.5, 0.7, 0.9], "for others": [0.4, 0.6, 0.79]}}
    assert "did better than" in dataclasses.replace(found, card=sure).told()[-1]
    assert Generated(Free(), [(2, 1, 2)], 1.0, 0.0, 0.0).worth is None


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--n", "0"], "n: must be at least 1, not 0"),
        (["--n", "few"], "few"),
        (["--steps", "0"], "generate.steps: input should be greater than or equal to 1, not 0"),
        (["--strength", "11"], "generate.strength: input should be less than or equal to 10"),
        (["--strength", "nan"], "generate.strength: "),
        (["--generator", "nothing"], "generator: there is no file nothing"),
        (["--generator", "."], "generator: there is no file ."),
        (["--generator", __file__], "is damaged or no generator's file"),
        (["--space", "darts", "--preset", "cpu"], "is of a space with other choices"),
        (["--space", "cnn"], "space: cnn is a fixed model, there is nothing to generate"),
        (["--space", "nasvita"], "space.name: no space is called 'nasvita'; did you mean nasvit?"),
        (["--preset", "cpu"], "space.preset: no preset is called 'cpu'; there are: default"),
        (["--data", "digit"], "data: no data set and no path is 'digit'; did you mean digits?"),
        (["--data", "digits", "client=3"], "data.client: unknown; did you mean clients?"),
        (["--data", "digits", "--client", "10"], "client: there are 10 clients, numbered from 0"),
        (["--data", "digits", "--client", "-1"], "give a number from 0 to 9, not '-1'"),
        (["--data", "digits", "--encoder", "nothing"], "encoder: there is no file nothing"),
        (["clients=3"], "clients: is about data; give --data as well"),
        (["--client", "1"], "client: is about data; give --data as well"),
        (["--encoder", "nothing"], "encoder: is about data; give --data as well"),
        (["--cache", "nothing"], "cache: is about data; give --data as well"),
        (["--sampler", "huen"], "generate.sampler: "),
    ],
)
def test_what_is_wrong_with_a_wish_is_a_sentence(words: list[str], says: str, file: Path, say: Any):
    named = {"--space": SPACE, "--preset": "default", "--generator": str(file)}
    named = {key: value for key, value in named.items() if key not in words}
    out, errors = say("generate", *words, *(w for pair in named.items() for w in pair), code=2)
    assert says in errors and len(errors.splitlines()) == 1 and out == ""


def test_a_space_for_which_none_comes_with_the_package(say: Any):
    _, errors = say("generate", "--space", "mobilenetv3_plato", code=2)
    assert errors.startswith("fedtailor: space: no generator comes with the package for mobilenet")


def test_another_encoder_than_the_generator_s_is_refused(say: Any, tmp_path: Path):
    path, space = tmp_path / "other.safetensors", make_space({"name": SPACE})
    for features, digest in ((12, {}), (SMALL_FEATURES, {"encoder": "another"})):
        made = tiny_generator.generator(space, features=features)
        save(dataclasses.replace(made, about=digest), path)
        _, errors = say(*generate(path, "--data", "digits"), code=2)
        assert errors.startswith("fedtailor: encoder: the generator was made with another one")


def test_the_real_program_prints_nothing_but_json(file: Path):
    command = [
        sys.executable,
        "-m",
        "fedtailor",
        *map(str, generate(file, "--n", 3, "--json")),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert len(json.loads(done.stdout)["architectures"]) == 3
