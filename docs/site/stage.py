"""Lay the pages of the site out in a folder: what is in the repository, and what the code says.

python -m docs.site.stage build/docs

README, docs and results keep their places, so that a link that works in the repository works on the
site. Where a line of a page is `<!-- site: WORDS -->`, what the code says takes its place:

- `options NAME...`: the fields of these methods, as `fedtailor ls NAME` tells them
- `methods`: every method with its paper, its differences, what leaves a client, and its fields
- `spaces`: the fields of every model and search space
- `names`: every public name, for mkdocstrings, which reads signatures and docstrings
"""

import inspect
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import fedtailor
from fedtailor.cli.list_text import toml
from fedtailor.cli.listing import described
from fedtailor.core import registry
from fedtailor.core.fields import described_fields

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "CHANGELOG.md", "docs/*.md", "docs/*.svg", "docs/site/style.css",
         "results/*.md", "results/*.svg", "results/*.sh", "examples/*.ipynb")  # fmt: skip
MARK = re.compile(r"^<!-- site: (\w+) ?(.*?) -->$", re.MULTILINE)
PAGES_OF = {
    "perfedrlnas": "perfedrlnas.md", "perfedsde": "perfedsde.md", "spider": "spider.md",
    "fednas": "rivals.md#fednas", "fedrlnas": "rivals.md#fedrlnas", "knnper": "rivals.md#knn-per",
}  # fmt: skip


def stage(target: Path) -> list[Path]:
    """Write the site's config and pages below a folder; pages of an earlier time are removed."""
    shutil.rmtree(target / "pages", ignore_errors=True)
    written = []
    for source in staged():
        page = target / "pages" / source.relative_to(ROOT)
        page.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            page.write_text(filled(source.read_text(encoding="utf-8")), encoding="utf-8")
        else:
            shutil.copyfile(source, page)
        written.append(page)
    shutil.copyfile(ROOT / "docs" / "site" / "zensical.toml", target / "zensical.toml")
    return written


def staged() -> list[Path]:
    """Return the files of the repository that the site has."""
    return sorted(path for pattern in PAGES for path in ROOT.glob(pattern))


def filled(text: str) -> str:
    """Put what the code says into the places that a page keeps for it."""
    return MARK.sub(lambda found: _said(found[1], found[2].split()), text)


def _said(what: str, names: list[str]) -> str:
    if what == "options":
        return "\n\n".join(_options("algorithm", name) for name in names)
    if what == "spaces":
        return "\n\n".join(_options("space", name) for name in registry.names("space"))
    if what == "methods":
        return "\n\n".join(_method(name) for name in registry.names("algorithm"))
    if what == "names":
        return "\n\n".join(f"::: fedtailor.{name}" for name in fedtailor.__all__)
    raise ValueError(f"<!-- site: {what} -->: options, methods, spaces and names are known")


def _method(name: str) -> str:
    """Tell all of a method that its file says."""
    (told,) = (one for one in described(name) if one["kind"] == "algorithm")
    text = inspect.getdoc(inspect.getmodule(registry.find("algorithm", name))) or ""
    first, _, rest = text.partition("\n")
    title, _, about = first.partition(": ")
    more = f"More: [{title}]({PAGES_OF[name]})." if name in PAGES_OF else ""
    parts = (f"## {title}", f"`{name}`: {about}", _paragraphs(rest), more, _leaves(told["sends"]))
    return "\n\n".join(part for part in (*parts, _options("algorithm", name)) if part)


def _paragraphs(text: str) -> str:
    """Make Markdown of a docstring: lists stand apart from what is around them."""
    lines = [""]
    for line in text.strip().splitlines():
        listed, item = lines[-1].startswith(("- ", " ")), line.startswith("- ")
        ends = listed and line[:1] not in ("-", " ")
        if lines[-1] and (ends or (item and not listed) or line.startswith("Differs")):
            lines.append("")
        lines.append(re.sub(r"^ +", "    ", line).replace("<", "&lt;"))
    return "\n".join(lines).strip()


def _leaves(sends: dict[str, list[dict[str, Any]]]) -> str:
    """Say what leaves a client, by the forms that a reply may have."""
    forms = ["; ".join(one["what"] for one in parts) or "nothing" for parts in sends.values()]
    return f"**Leaves a client:** {', or: '.join(dict.fromkeys(forms))}."


def _options(kind: str, name: str) -> str:
    """Write the fields of a method or space as a table: its own, then those that all have."""
    every = described_fields(fedtailor.Algorithm) if kind == "algorithm" else []
    own, common = list[dict[str, Any]](), list[dict[str, Any]]()
    for field in described_fields(registry.find(kind, name)):
        (common if field in every else own).append(field)
    names = ", ".join(f"`{field['name']}`" for field in common)
    beside = f"As of [every method](config.md): {names}." if common else ""
    head = f"Fields of `[{kind}]` for `{name}`, as `fedtailor ls {name}` tells them"
    if not own:
        return f"{head}: none of its own. {beside}"
    rows = [f"| `{f['name']}` | {_default(f)} | {_meaning(f)} |" for f in own]
    table = ["| field | default | meaning |", "|---|---|---|", *rows]
    return "\n".join((f"{head}:", "", *table, "", beside))


def _default(field: dict[str, Any]) -> str:
    return "none" if field["default"] is None else f"`{toml(field['default'])}`"


def _meaning(field: dict[str, Any]) -> str:
    """Say what a field takes, where its default does not show it, and what it is for."""
    options = field["type"].removesuffix(" | None").replace("'", '"').split(" | ")
    shown = ", ".join(f"`{option}`" for option in options) if len(options) > 1 else ""
    meaning = field["meaning"].replace("<", "&lt;").replace("|", "\\|")
    return "; ".join(part for part in (shown, meaning) if part)


if __name__ == "__main__":
    print(f"laid out {len(stage(Path(sys.argv[1])))} files of the site")
