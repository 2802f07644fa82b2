"""Print what examples/supernet.py found: `python examples/supernet_table.py supernet`."""

import json
import sys
from pathlib import Path

import numpy as np
from scipy.stats import kendalltau


def row(file: Path) -> str:
    """Return a line of the table: accuracies of one space's architectures, in percent."""
    rows = json.loads(file.read_text())["rows"]
    found = [100 * r["accuracy"] for r in rows]
    drawn = np.array(found[2:])
    spread = f"{drawn.mean():.1f} ± {drawn.std():.1f} ({drawn.min():.1f} to {drawn.max():.1f})"
    return f"| `{file.stem}` | {found[0]:.1f} | {spread} | {found[1]:.1f} |"


def agreement(file: Path) -> str:
    """Compare the order of architectures in the supernet with that of training them alone."""
    rows = json.loads(file.read_text())["rows"]
    files = sorted(file.parent.glob(f"{file.stem}-alone-*.json"))
    alone = [json.loads(f.read_text()) for f in files]
    pairs = np.array([(rows[a["number"]]["accuracy"], a["accuracy"]) for a in alone])
    rng = np.random.default_rng(0)
    draws = [pairs[rng.integers(len(pairs), size=len(pairs))] for _ in range(10_000)]
    taus = [kendalltau(*drawn.T).statistic for drawn in draws]
    low, high = np.nanpercentile(taus, [2.5, 97.5])
    tau = kendalltau(*pairs.T)
    lines = [f"{100 * a:.1f} {100 * b:.1f}" for a, b in pairs]
    return (
        f"{file.stem}: Kendall tau {tau.statistic:.2f} over {len(pairs)} architectures "
        f"(95 % by bootstrap: {low:.2f} to {high:.2f}; p = {tau.pvalue:.3f}); "
        f"supernet and alone, in percent: {', '.join(lines)}"
    )


def main() -> None:
    """Print the table and, where architectures were trained alone, the agreement."""
    folder = Path(sys.argv[1])
    files = [f for f in sorted(folder.glob("*.json")) if "-alone-" not in f.name]
    print("| space | smallest | 30 random | largest |\n|---|---|---|---|")
    for file in files:
        print(row(file))
    for file in files:
        if any(folder.glob(f"{file.stem}-alone-*.json")):
            print("\n" + agreement(file))


if __name__ == "__main__":
    main()
