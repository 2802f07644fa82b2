"""The file name is the registry, for every kind of thing."""

from pathlib import Path
from typing import Any

import pytest

from fedtailor.core import registry
from fedtailor.core.errors import UserError
from fedtailor.spaces.cnn import CNN
from tests.helpers.tiny_space import Tiny

CLASSES = [kind for kind in registry.KINDS if registry.KINDS[kind].marks]


@pytest.mark.parametrize("kind", registry.KINDS)
def test_names_are_files_and_helpers_have_none(kind: str):
    found = registry.names(kind)
    assert found == sorted(found) and found
    assert not any(name.startswith("_") for name in found)
    assert all(registry.module_of(kind, name).__doc__ for name in found)


@pytest.mark.parametrize("kind", CLASSES)
def test_an_unknown_name_is_one_sentence_with_the_nearest(kind: str):
    name = registry.names(kind)[0]
    with pytest.raises(UserError, match=rf"^{kind}\.name: .*'{name}x'; did you mean {name}\?$"):
        registry.find(kind, f"{name}x")


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Mine = 3", "has no class Mine"),
        ("class Mine: pass", "Mine is no"),
        ("import nothing_of_that_name", "ModuleNotFoundError while importing it"),
    ],
)
def test_a_users_file_without_such_a_class_is_one_sentence(
    kind: str, text: str, says: str, tmp_path: Path
):
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises(UserError, match=says):
        registry.find(kind, f"{file}:Mine")


@pytest.mark.parametrize("space", [CNN(width=5), Tiny(2)])
def test_what_is_described_is_built_again(space: Any):
    description = registry.describe("space", space)
    back = registry.rebuild("space", description)
    assert vars(back) == vars(space) and registry.describe("space", back) == description


def test_hyphens_are_underscores_of_files():
    assert registry.module_of("data", "fashion-mnist").__name__.endswith("fashion_mnist")
