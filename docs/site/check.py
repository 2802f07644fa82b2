"""Check a built site: nothing is fetched from elsewhere, and every link of its own leads somewhere.

python -m docs.site.check build/docs/html
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {
    "script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src",
    "audio": "src", "embed": "src", "object": "data", "link": "href", "use": "href",
}  # fmt: skip
NEVER_LOADED = {"canonical", "next", "prev", "alternate"}  # of <link rel>
IN_STYLES = re.compile(r"""(?:url\(|@import)\s*['"]?((?:https?:)?//[^'")\s]+)""")


class Page(HTMLParser):
    """What a page loads, links to and can be linked to by."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded, self.links, self.ids = list[str](), list[str](), set[str]()
        self.feed(text)
        self.loaded += IN_STYLES.findall(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take note of an element."""
        found = {name: value or "" for name, value in attrs}
        self.ids |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif found.get("rel", "") not in NEVER_LOADED and LOADED.get(tag) in found:
            self.loaded.append(found[LOADED[tag]])
        if "mermaid" in found.get("class", "").split():
            self.loaded.append("https://unpkg.com (mermaid, which the site's script would fetch)")


def faults(site: Path) -> list[str]:
    """Return a sentence for everything that is fetched from elsewhere or leads nowhere."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    told = [] if pages else [f"{site}: has no page"]
    for path, page in pages.items():
        told += [f"{path}: loads {url}" for url in page.loaded if _outside(url)]
        every = [link for link in (*page.links, *page.loaded) if _within(link)]
        told += [f"{path}: {link} leads nowhere" for link in every if not _leads(path, link, pages)]
    for path in sorted(site.rglob("*.css")):
        urls = IN_STYLES.findall(path.read_text(encoding="utf-8"))
        told += [f"{path}: loads {url}" for url in urls]
    return told


def _outside(url: str) -> bool:
    return url.startswith(("http:", "https:", "//"))


def _within(link: str) -> bool:
    return not urlsplit(link).scheme and not link.startswith(("//", "/"))


def _leads(path: Path, link: str, pages: dict[Path, Page]) -> bool:
    parts = urlsplit(link)
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
    target = target / "index.html" if target.is_dir() else target
    page = next((page for one, page in pages.items() if one.resolve() == target), None)
    if page is None or not parts.fragment:
        return target.is_file()
    return unquote(parts.fragment) in page.ids | {"top", "__top"}


if __name__ == "__main__":
    found = faults(Path(sys.argv[1]))
    print(
        "\n".join(found)
        or f"{sys.argv[1]}: nothing is fetched from elsewhere, all links lead somewhere"
    )
    sys.exit(bool(found))
