"""The commands and the code of a page: what its blocks say, line by line, ready to be tried."""

import itertools
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

SHELL = ("", "bash", "sh", "console")
STAND_INS = {"N": "3", "R": "3", "...": "", "[...]": "", "key=value": ""}  # of a synopsis


@dataclass(frozen=True)
class Command:
    """A line that begins with `fedtailor`, as words; `block`: it stands in a block of its own."""

    page: Path
    words: tuple[str, ...]
    block: bool

    def __str__(self) -> str:
        return f"{self.page.name}: fedtailor {' '.join(self.words)}"


def blocks(page: Path, *languages: str) -> list[str]:
    """Return the fenced blocks of a page in these languages."""
    tokens = MarkdownIt("commonmark").enable("table").parse(page.read_text())
    found = (token for token in tokens if token.type == "fence")
    return [token.content for token in found if token.info.strip() in languages]


def sentences(page: Path) -> list[str]:
    """Return what stands as code within the sentences and tables of a page."""
    tokens = MarkdownIt("commonmark").enable("table").parse(page.read_text())
    spans = (one for token in tokens for one in token.children or ())
    return [one.content for one in spans if one.type == "code_inline"]


def lines_of_code(page: Path) -> list[str]:
    """Return the lines of all blocks for a shell, and what stands as code within sentences."""
    return [
        *(line for block in blocks(page, *SHELL) for line in shell_lines(block)),
        *sentences(page),
    ]


def commands(page: Path) -> list[Command]:
    """Return every command of a page, in order: those of blocks, then those within sentences."""
    lines = [(line, True) for block in blocks(page, *SHELL) for line in shell_lines(block)]
    return [
        Command(page, words, block)
        for line, block in [*lines, *((text, False) for text in sentences(page))]
        if re.match(r"fedtailor\s", line)
        for words in variants(line)
    ]


def shell_lines(block: str) -> list[str]:
    """Return the lines of a block as a shell would see them: joined, with variables put in."""
    values, lines = dict[str, list[str]](), list[str]()
    for line in block.replace("\\\n", " ").splitlines():
        loop = re.match(r"\s*for (\w+) in (.*); do$", line)
        given = re.match(r'(\w+)="(.*)"$', line)
        if loop:
            values[loop[1]] = loop[2].split()
        elif given:
            values[given[1]] = [given[2]]
        else:
            used = [name for name in values if f"${name}" in line]
            for each in itertools.product(*(values[name] for name in used)):
                text = line.strip()
                for name, value in zip(used, each, strict=True):
                    text = text.replace(f"${name}", value)
                lines.append(text)
    return lines


def variants(line: str) -> list[tuple[str, ...]]:
    """Return the commands that a line stands for: `a|b` is one of each, `[--x]` is given."""
    words = list[list[str]]()
    for word in shlex.split(line, comments=True)[1:]:
        opened, closed = word.startswith("["), word.endswith("]") and "=[" not in word
        plain = word[opened : len(word) - closed]
        plain = STAND_INS.get(plain, plain)
        key, equals, value = plain.rpartition("=")
        if plain:
            words.append([f"{key}{equals}{one}" for one in value.split("|")])
    return [tuple(each) for each in itertools.product(*words)]
