"""The table and the figure of `generated_or_evolved.py`."""

import numpy as np
from generated_work import Sizes
from matplotlib import rc_context
from matplotlib.figure import Figure
from scipy import stats

from fedtailor.report.drawing import COLOURS
from fedtailor.report.svg import STYLE, to_svg

RBF, RIDGE = ", chosen by the RBF", ", chosen by the ridge"
SHOWN = {  # in the figure, with a label and a colour
    "generated": ("generated for data and population", COLOURS[0]),
    "by data": ("generated for data, as in the paper", COLOURS[4]),
    "unguided": ("generated unguided", "black"),
    "effects": ("drawn by effects, no diffusion", COLOURS[2]),
    "bred": ("crossover and mutation", COLOURS[1]),
    "random": ("drawn at random", COLOURS[5]),
}


def table(found: list[dict]) -> str:
    """Return the differences from bred candidates, with Student's intervals over clients."""
    lines = [
        "| candidates | mean | top 10 | mean, minus bred | top 10, minus bred |",
        "|" + "---|" * 5,
    ]
    values = {
        name: np.array(
            [[np.mean(one["accuracy"][name]), np.mean(one["accuracy"][name][:10])] for one in found]
        )
        for name in found[0]["accuracy"]
    }
    for name, rows in values.items():
        how = next((suffix for suffix in (RBF, RIDGE) if name.endswith(suffix)), "")
        base = values["bred" + how]
        cells = [f"{100 * value:.2f}" for value in rows.mean(0)]
        cells += [_interval(100 * (rows - base)[:, column]) for column in (0, 1)]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines.append("\nChosen by the RBF, minus bred of any as they come, the paper's comparison:")
    for name, way in (("by data", "the paper's way"), ("generated", "ours")):
        gained = 100 * (values[name + RBF] - values["bred of any"])
        shown = [_interval(gained[:, column]) for column in (0, 1)]
        lines.append(f"- {name} ({way}): mean {shown[0]}, top 10 {shown[1]}")
    return "\n".join(lines)


def _interval(values: np.ndarray) -> str:
    mean, half = values.mean(), stats.sem(values) * stats.t.ppf(0.975, len(values) - 1)
    return f"{mean:+.2f} ({mean - half:+.2f} to {mean + half:+.2f})"


def figure(found: list[dict], sizes: Sizes) -> str:
    """Draw the sorted accuracies, averaged over clients rank by rank."""
    chosen = f"{sizes.tested} of {sizes.candidates}, chosen by the RBF"
    with rc_context(STYLE):
        shown = Figure(figsize=(9, 3.6), layout="constrained")
        axes = shown.subplots(1, 2, sharey=True)
        for axis, suffix, title in zip(axes, ("", RBF), ("as they come", chosen), strict=True):
            for name, (label, colour) in SHOWN.items():
                sorted_ = [one["accuracy"][name + suffix] for one in found]
                shortest = min(map(len, sorted_))  # a small space may have fewer candidates
                curve = np.mean([values[:shortest] for values in sorted_], 0)
                axis.plot(100 * curve, color=colour, label=label)
            axis.set(title=title, xlabel="rank")
        axes[0].set_ylabel("accuracy on test images, %")
        axes[0].legend(fontsize=8)
    return to_svg(shown)
