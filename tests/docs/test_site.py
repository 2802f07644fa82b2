"""The site: what the code says of itself is there, and what must not be there is found."""

import dataclasses
import re
from pathlib import Path

import pytest

import fedtailor
from docs.site.check import faults
from docs.site.stage import ROOT, filled, stage
from fedtailor.core import registry
from fedtailor.core.fields import described_fields
from fedtailor.runs.config import Config

NAMED = [(kind, name) for kind in ("algorithm", "space") for name in registry.names(kind)]
ROW = re.compile(r"^\| (`.*?`) \| (.*?) \| .* \|$", re.MULTILINE)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    stage(target)
    return target / "pages"


@pytest.mark.parametrize(("kind", "name"), NAMED)
def test_every_field_has_a_meaning(kind: str, name: str):
    fields = described_fields(registry.find(kind, name))
    assert [field["name"] for field in fields if not field["meaning"]] == []


@pytest.mark.parametrize(("kind", "name"), NAMED)
def test_the_site_has_every_field_with_its_default(kind: str, name: str, pages: Path):
    page = pages / "docs" / {"algorithm": "methods.md", "space": "spaces.md"}[kind]
    _, head, rest = page.read_text().partition(f"`fedtailor ls {name}` tells them")
    assert head
    table = rest.split("Fields of `[")[0].split("\n## ")[0]
    found, every = registry.find(kind, name)(), dataclasses.fields(fedtailor.Algorithm)
    common = {field.name: field.default for field in every} if kind == "algorithm" else {}
    for field in dataclasses.fields(found):
        value = getattr(found, field.name)
        row = re.search(rf"^\| `{field.name}` \| (.*?) \|", table, re.MULTILINE)
        if row is None:  # as of every method
            assert f"`{field.name}`" in table and common[field.name] == value
        elif isinstance(value, int | float):
            assert row[1] == f"`{str(value).lower() if isinstance(value, bool) else value}`"


def test_the_site_has_every_public_name(pages: Path):
    listed = re.findall(
        r"^::: fedtailor\.(\w+)$", (pages / "docs/api.md").read_text(), re.MULTILINE
    )
    assert sorted(listed) == sorted(fedtailor.__all__)


def test_no_place_is_left_unfilled(pages: Path):
    assert not [page for page in pages.rglob("*.md") if "\n<!-- site:" in page.read_text()]
    assert filled("`<!-- site: names -->`") == "`<!-- site: names -->`", "only a whole line is one"
    with pytest.raises(ValueError, match="optoins"):
        filled("<!-- site: optoins spider -->")


def test_defaults_that_the_config_page_tells_are_those_of_the_code():
    text = (ROOT / "docs" / "config.md").read_text()
    fields = (*dataclasses.fields(Config), *dataclasses.fields(fedtailor.Algorithm))
    code = {field.name: field.default for field in fields}
    told = dict[str, str]()
    for names, defaults in ROW.findall(text):
        told |= dict(zip(re.findall(r"`(\w+)`", names), defaults.split(", "), strict=True))
    assert set(told) >= {"seed", "rounds", "start", "epochs", "batch", "optimizer", "lr", "clip"}
    for name, default in told.items():
        value = code[name]
        shown = f"{value:g}" if isinstance(value, float) else str(value).lower()
        if value is None or default == "by method":
            assert not re.match(r'\d|`"', default), f"{name} has no such default"
        else:
            assert default.strip('`"') == shown, name


OUTSIDE = [
    '<script src="https://cdn.example/a.js"></script>',
    '<img src="//cdn.example/a.png">',
    '<link rel="stylesheet" href="https://fonts.example/css">',
    '<pre class="mermaid">a</pre>',
    '<style>@import "https://fonts.example/css";</style>',
    '<p style="background: url(http://cdn.example/a.png)">',
    '<a href="b.html#there">b</a>',
    '<a href="missing.html">c</a>',
]


@pytest.mark.parametrize("element", OUTSIDE)
def test_what_is_fetched_from_elsewhere_or_leads_nowhere_is_found(element: str, tmp_path: Path):
    (tmp_path / "b.html").write_text('<h2 id="here">b</h2><a href="https://example.org">away</a>')
    good = '<link rel="canonical" href="https://example.org"><a href="b.html#here">b</a>'
    (tmp_path / "a.html").write_text(good)
    assert faults(tmp_path) == []
    (tmp_path / "a.html").write_text(good + element)
    assert len(faults(tmp_path)) == 1
    (tmp_path / "style.css").write_text("@font-face { src: url('https://fonts.example/a.woff2') }")
    assert len(faults(tmp_path)) == 2
