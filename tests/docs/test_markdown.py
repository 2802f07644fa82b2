"""Pages: of the same form in the repository and on the site, with links that lead somewhere."""

import re
import tomllib
from html.parser import HTMLParser
from itertools import chain, pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import markdown
import pytest
from markdown_it import MarkdownIt

from docs.site.stage import ROOT, staged

PAGES = [path for path in staged() if path.suffix == ".md"]
OUTLINE = ("ul", "ol", "li", "table", "td", "pre", "blockquote", "h1", "h2", "h3", "img", "a")


class Outline(HTMLParser):
    """The elements of a page that give it its form, each with all of its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found, self.links, self._open = list[list[str]](), list[str](), list[list[str]]()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.links += [value for key in ("href", "src") if (value := named.get(key))]
        if tag in OUTLINE:
            self.found.append([tag, ""])
            if tag != "img":
                self._open.append(self.found[-1])

    def handle_endtag(self, tag: str) -> None:
        if tag in OUTLINE and tag != "img":
            assert self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element[1] += re.sub(r"\s", "", data)


def in_the_repository(text: str) -> Outline:
    return Outline(MarkdownIt("commonmark").enable("table").render(text))


def on_the_site(text: str) -> Outline:
    return Outline(markdown.markdown(text, extensions=["tables", "fenced_code"]))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_has_the_same_form_in_the_repository_and_on_the_site(page: Path):
    """Two readings of Markdown: CommonMark, and Python-Markdown, by which the site is made."""
    text = page.read_text()
    assert on_the_site(text).found == in_the_repository(text).found


def anchors(path: Path) -> set[str]:
    """Return the names by which headings of a page can be linked to."""
    headings = [text for tag, text in _headings(path.read_text()) if tag]
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


def _headings(text: str) -> list[tuple[str, str]]:
    tokens = MarkdownIt("commonmark").parse(text)
    return [
        (one.tag, "".join(part.content for part in two.children or ()))
        for one, two in pairwise(tokens)
        if one.type == "heading_open"
    ]


def links() -> list[tuple[Path, str]]:
    found = ((page, link) for page in PAGES for link in in_the_repository(page.read_text()).links)
    return [(page, link) for page, link in found if not urlsplit(link).scheme]


def test_there_are_links_to_check():
    assert len(links()) > 80


@pytest.mark.parametrize(("page", "link"), links(), ids=lambda one: getattr(one, "name", one))
def test_a_link_leads_to_a_page_of_the_repository_that_the_site_has_too(page: Path, link: str):
    parts = urlsplit(link)
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    assert target in staged()
    if parts.fragment:
        assert parts.fragment in anchors(target)


def nav(entries: list[dict[str, Any]]) -> list[str]:
    values = chain.from_iterable(entry.values() for entry in entries)
    return list(chain.from_iterable([v] if isinstance(v, str) else nav(v) for v in values))


def test_every_page_stands_in_the_navigation_once():
    project = tomllib.loads((ROOT / "docs/site/zensical.toml").read_text())["project"]
    assert sorted(nav(project["nav"])) == sorted(str(page.relative_to(ROOT)) for page in PAGES)
