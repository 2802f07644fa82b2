"""The pictures of a report: each a function from settings to what is drawn, or None.

A new picture is one function and one entry in PICTURES.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtailor.report.drawing import HALF
from fedtailor.report.facts import client_titles
from fedtailor.report.files import svgs_of, write_picture
from fedtailor.report.pictures import (
    blocks,
    budgets,
    cells,
    coverage,
    labels,
    matrix,
    networks,
    offspring,
    over_clients,
    over_rounds,
    points,
    searches,
    surrogate,
    time_spent,
)
from fedtailor.report.svg import Draw, Drawn, inline
from fedtailor.runs.comparison import Group

NEAR = 3  # small pictures on, from which the one beside is chosen


@dataclass(frozen=True)
class Picture:
    """A picture's place in the report; its key names the files."""

    key: str
    title: str
    caption: str
    draw: Draw


PICTURES = (
    Picture(
        "means",
        "Is one better than another?",
        "Mean test accuracy over clients; the dark line is its 95 % interval over clients, ticks "
        "are single seeds. Intervals that overlap may still differ client by client: the table "
        "above has the paired differences.",
        over_clients.means_of_settings,
    ),
    Picture(
        "clients",
        "Who is served well?",
        "The curve's height is the share of clients with at most the accuracy below it: further "
        "right is better, steeper is fairer; clients that train alone are dashed.",
        over_clients.accuracy_over_clients,
    ),
    Picture(
        "rounds",
        "At what price?",
        "Accuracy before any final tuning, against rounds, traffic and time: higher and further "
        "left is better; a run that sends nothing is a dot at 0 MB. The band is the mean's 95 % "
        "interval over clients.",
        over_rounds.accuracy_over_rounds,
    ),
    Picture(
        "gain",
        "Is it worth it for every client?",
        "Each bar is a client's gain, in points of test accuracy, over what the axis names; "
        "vermilion bars below zero are clients that lose. The grey band is the 95 % interval of "
        "the mean.",
        over_clients.gain_per_client,
    ),
    Picture(
        "labels",
        "How different are the clients?",
        "Each column is a client, in the order used everywhere on this page; a mark's area (or "
        "colour) is its number of images of a class, the bars above are all its images. Vermilion "
        "marks classes that a client is tested on without training on them.",
        labels.label_distribution,
    ),
    Picture(
        "architectures",
        "Who got which network?",
        "Each column is a client and each row a choice of the search space; the colour is the "
        "option of the network it would deploy (none where that makes no difference, as of an "
        "absent layer), the bars are how undecided the search still is, from 0 to 1: the clients' "
        "policies or, where they search for themselves, what their archives hold.",
        networks.architecture_map,
    ),
    Picture(
        "cells",
        "What do the cells look like?",
        "Both cells of the networks of a few clients: by accuracy the best, the median and the "
        "worst, and the two that differ most. Inputs are on the left, every edge says its "
        "operations (dotted: none), or how many of more than two are left, and all nodes go to the "
        "output.",
        cells.searched_cells,
    ),
    Picture(
        "blocks",
        "What do the networks look like?",
        "The networks of a few clients, stage by stage: by accuracy the best, the median and the "
        "worst, and the two that differ most. A box is a block with its kernel and expansion (the "
        "colour: blue the smallest, orange the largest); beside a stage's name is its width.",
        blocks.block_diagrams,
    ),
    Picture(
        "matrix",
        "How personal are the networks?",
        "Every client's network (column), tuned on every client's training images (row), by test "
        "accuracy in percent; own networks are on the diagonal, like clients beside one another. "
        "p is how often networks dealt at random would do as well (fedtailor gain).",
        matrix.personalisation,
    ),
    Picture(
        "search",
        "Has the search decided?",
        "The mean entropy of policies or, where clients search for themselves, of what their "
        "archives hold (1: every option as likely as the others, 0: decided), and the rewards that "
        "policies learned from; each client with its latest value, the band holds eight clients "
        "of ten.",
        searches.search_over_rounds,
    ),
    Picture(
        "options",
        "What did the search prefer?",
        "Of all choices of all networks that clients trained in a round (or, where they search for "
        "themselves, that their archives kept or that was left), the share that took each option.",
        searches.options_over_rounds,
    ),
    Picture(
        "surrogate",
        "Can the predictions be trusted?",
        "Each mark is a candidate that a client's surrogate chose, by what it was thought to score "
        "and what it scored, both less the mean of those scored together: others had other weights "
        "or images. The line is the mean, dashed is as predicted; marks far outside are cut off. "
        "Kendall's tau says how well those scored together were ranked (1 perfectly, 0 by chance); "
        "its mean over the round's clients has their 95 % interval. What was not chosen was not "
        "scored: of all candidates tau may be higher.",
        surrogate.predicted_and_measured,
    ),
    Picture(
        "candidates",
        "How good are the candidates?",
        "What searches proposed and then scored, be it generated, bred or drawn at random: means "
        "over the round's clients, with their 95 % intervals. A good population is harder to "
        "surpass.",
        offspring.candidates,
    ),
    Picture(
        "coverage",
        "Was all of the supernet trained?",
        "Of all networks that clients trained (or their archives kept), the percentage that took "
        "each option (column) of each choice (row); vermilion options were never taken.",
        coverage.supernet_coverage,
    ),
    Picture(
        "budgets",
        "Do the networks fit the devices?",
        "Clients from the smallest memory to the largest: the bars are what training the deployed "
        "network takes, the line is what the device has; below, how many of the networks drawn in "
        "training did not fit. Of several settings with memory budgets, the first one.",
        budgets.memory_budgets,
    ),
    Picture(
        "similarity",
        "Do clients with like data get like networks?",
        "Each mark is a pair of clients: how far apart their label distributions are "
        "(Jensen-Shannon distance), and how differently their policies (or archives) lean (0 "
        "alike, 1 unrelated, 2 apart; 1 less the cosine of probabilities less undecided ones). The "
        "line is the mean; the rank correlation is Spearman's, its p-value one-sided, by "
        "exchanging clients (Mantel's test).",
        points.similarity,
    ),
    Picture(
        "parameters",
        "What do small networks cost?",
        "Each mark is a client: the size of the network it would deploy, the multiply-adds of one "
        "image, and its test accuracy.",
        points.accuracy_by_cost,
    ),
    Picture(
        "timeline",
        "Whom did the rounds wait for?",
        "Each row is a client, each bar its part of a round; a round ends with its slowest client. "
        "At most the last 30 rounds and the 30 clients that were waited for longest; of several "
        "seeds the first.",
        time_spent.timeline,
    ),
    Picture(
        "parts",
        "What takes a client's time?",
        "The CPU seconds of a client's round, by the parts that a method tells apart, on average "
        "over all clients' rounds here.",
        time_spent.parts_of_a_round,
    ),
)


def drawn_pictures(groups: Sequence[Group], folder: Path | None) -> list[dict[str, Any]]:
    """Draw what there is to draw, for the page and, where a folder is given, as files."""
    found, called = [], client_titles(groups)
    for picture in PICTURES:
        drawn = picture.draw(groups)
        svgs = svgs_of(drawn, called) if drawn else []
        if folder:
            write_picture(folder, picture.key, drawn, svgs)
        if drawn:
            found.append(_entry(picture, drawn, svgs))
    return _placed(found)


def _entry(picture: Picture, drawn: Drawn, svgs: list[str]) -> dict[str, Any]:
    single = len(svgs) == 1 and drawn.panels[0].get_figwidth() <= HALF
    return {
        "key": picture.key,
        "title": picture.title,
        "caption": " ".join(filter(None, (picture.caption, drawn.note))),
        "svgs": [inline(svg, f"{picture.key}{n}", picture.title) for n, svg in enumerate(svgs, 1)],
        "place": "half" if single else "full",
        "height": drawn.panels[0].get_figheight(),
    }


def _placed(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Set small pictures side by side, so that no row is half empty; one alone beside its text.

    Beside a picture stands the next that is about as high, but not one from the page's other end.
    """
    left, found = list(entries), []
    while left:
        entry = left.pop(0)
        found.append(entry)
        if entry["place"] == "half":
            near = [each for each in left if each["place"] == "half"][:NEAR]
            height = entry["height"]
            other = min(near, key=lambda one: abs(one["height"] - height), default=None)
            if other is None:
                entry["place"] = "alone"
            else:
                left.remove(other)
                found.append(other)
    return found
