"""The import rule of the architecture: modules know those below them, never those above."""

import ast
from pathlib import Path

import pytest

import fedtailor

ROOT = Path(fedtailor.__file__).parent
LAYERS = [
    {"types", "codec", "rng", "registry", "errors"},
    {"spaces", "data", "supernet", "cost", "search", "learn", "depthwise", "chain", "genes"}
    | {"flops", "initial", "merge", "optimise", "pointwise", "population", "schemes"},
    {"algorithm", "algorithms"},
    {"loop", "engines", "config", "runfolder", "newrun", "summary"}
    | {"inspection", "reach"}
    | {"pretrain"},
    {"cli", "cli_common", "cli_generator", "report", "experiment", "terminal", "planning"}
    | {"listing", "demonstration"}
    | {"onboarding", "generation"},
]


def layer(module: str) -> int:
    return next(i for i, names in enumerate(LAYERS) if module in names)


def imported(path: Path) -> set[str]:
    """Return the top-level parts of fedtailor that a file imports, wherever it does so."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module]
            if node.module == "fedtailor":
                names = [f"fedtailor.{alias.name}" for alias in node.names]
        else:
            assert not (isinstance(node, ast.ImportFrom) and node.level), "imports are absolute"
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("fedtailor.")}
    return found


FILES = [p for p in sorted(ROOT.rglob("*.py")) if p != ROOT / "__init__.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_imports_only_from_its_layer_or_below(path: Path):
    own = path.relative_to(ROOT).parts[0].removesuffix(".py")
    above = {name for name in imported(path) if layer(name) > layer(own)}
    assert not above


def test_the_command_line_says_help_without_torch():
    """`--help` must not wait for a second or two of imports."""
    import subprocess
    import sys

    code = "import sys, fedtailor.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
