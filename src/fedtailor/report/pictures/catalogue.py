"""The pictures of a report: each a function from runs to a Figure, or None if there is nothing yet.

A new picture is one function and one entry in PICTURES.
"""

from dataclasses import dataclass

from fedtailor.report.pictures import any_run, points, searches
from fedtailor.report.svg import Draw


@dataclass(frozen=True)
class Picture:
    """A picture's place in the report; its key names the file."""

    key: str
    title: str
    caption: str
    draw: Draw


PICTURES = (
    Picture(
        "rounds",
        "At what price?",
        "Accuracy before any final tuning, against rounds, traffic and time: higher and further "
        "left is better; a run that sends nothing is a dot at 0 MB.",
        any_run.accuracy_over_rounds,
    ),
    Picture(
        "clients",
        "Who is served well?",
        "The curve's height is the share of clients with at most the accuracy below it: further "
        "right is better, steeper is fairer; clients that train alone are dashed.",
        any_run.accuracy_over_clients,
    ),
    Picture(
        "gain",
        "Is it worth it for every client?",
        "Each bar is a client's gain, in points of test accuracy, over what the axis names; "
        "vermilion bars below zero are clients that lose.",
        any_run.gain_per_client,
    ),
    Picture(
        "labels",
        "How different are the clients?",
        "Each column is a client, in the order used everywhere on this page; a mark's area (or "
        "colour) is its number of images of a class, the bars above are all its images. Vermilion "
        "marks classes that a client is tested on without training on them.",
        any_run.label_distribution,
    ),
    Picture(
        "architectures",
        "Who got which network?",
        "Each column is a client and each row a choice of the search space; the colour is the "
        "option of the network it would deploy (none where that makes no difference, as of an "
        "absent layer), the bars are how undecided the search still is, from 0 to 1: the clients' "
        "policies or, where they search for themselves, what their archives hold. Of several runs "
        "that search, the first two with the same choices.",
        searches.architecture_map,
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
        "budgets",
        "Do the networks fit the devices?",
        "Clients from the smallest memory to the largest: the bars are what training the deployed "
        "network takes, the line is what the device has; below, how many of the networks drawn in "
        "training did not fit. Of several runs with memory budgets, the first one.",
        searches.memory_budgets,
    ),
    Picture(
        "similarity",
        "Do clients with like data get like networks?",
        "Each mark is a pair of clients: how far apart their label distributions are "
        "(Jensen-Shannon distance), and how differently their policies (or archives) lean (0 "
        "alike, 1 unrelated, 2 apart; 1 less the cosine of probabilities less undecided ones). The "
        "line is the mean; the rank correlation is Spearman's, its p-value one-sided, by "
        "exchanging clients (Mantel's test). At most three runs that search are shown.",
        points.similarity,
    ),
    Picture(
        "parameters",
        "What do small networks cost?",
        "Each mark is a client: the size of the network it would deploy, and its test accuracy.",
        points.accuracy_by_size,
    ),
)
