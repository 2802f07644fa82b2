"""What `plan` says, for people."""

import itertools
import textwrap
from typing import Any

from fedtailor.report.wording import MAX_ROWS, client_column, counted, duration

SHADES = " ·░▒▓█"  # of more and more images


def plan_lines(found: dict[str, Any]) -> list[str]:
    """Tell what a run would cost, in a few lines and a picture of the labels."""
    counts, names = found["label_counts"], found["classes"]
    peak = max(max(row) for row in counts) or 1
    lines = [
        counted(found["clients"], "client")
        + (f" and {found['new_clients']} kept out" if found["new_clients"] else "")
        + f", images {'x'.join(str(n) for n in found['image_shape'])}, "
        + f"{len(names)} class{'' if len(names) == 1 else 'es'}"
        + (f"; {found['public']:,} images are the server's" if "public" in found else "")
    ]
    shifts = found.get("shifts", [""] * len(counts))
    unseen = [f"{n} tests unseen" for n in found.get("unseen_tests", ())] or [""] * len(counts)
    column = client_column(range(min(len(counts), MAX_ROWS)), found["client_names"])
    lines.append(f"{column['client']}  train   val  test  images of each class (darker: more)")
    for client, (row, size, *notes) in enumerate(
        itertools.islice(zip(counts, found["sizes"], shifts, unseen, strict=True), MAX_ROWS)
    ):
        picture = "".join(SHADES[-(-n * (len(SHADES) - 1) // peak)] for n in row)
        lines.append(
            f"{column[client]} {size['train']:6d} {size['val']:5d} {size['test']:5d}  |{picture}|"
            + "".join(f"  {note}" for note in notes if note)
        )
    if len(counts) > MAX_ROWS:
        lines.append(f"   ... and {len(counts) - MAX_ROWS} more (--json has all)")
    traffic, times = found["bytes"], found["estimated_s"]
    once = found["bytes_once_per_client"]
    lines += [
        *_network_lines(found),
        f"traffic         {traffic['down'] / 1e6:,.1f} MB down, "
        f"{traffic['up'] / 1e6:,.1f} MB up in all"
        + (f", and {once / 1e6:,.1f} MB once for each client" if once else ""),
        f"modelled round  {found['modelled_round_s']['slowest']:.2f} s for the slowest client",
        f"this machine    about {duration(times['total'])} on "
        f"{found['cores']['used']} of {found['cores']['there']} cores: "
        f"{duration(times['training'])} training, "
        f"{duration(times['testing'] + times['tuning'])} testing and tuning",
    ]
    for kind in ("warning", "note"):
        for text in found[f"{kind}s"]:
            lines += textwrap.wrap(text, initial_indent=f"{kind:16}", subsequent_indent=" " * 16)
    return lines


def _network_lines(found: dict[str, Any]) -> list[str]:
    """Tell what the network costs, or those between which a search chooses."""
    if not found["architectures"]:
        over = found["over_memory_budget"]
        return [
            f"model           {_size(found)}",
            f"memory          {found['memory_mb']:,.1f} MB to train"
            + (f"; too much for clients {over}" if over else ""),
        ]
    clients, lines = len(found["sizes"]), []
    for name, one in found["architectures"].items():
        over = len(one["over_memory_budget"])
        lines.append(
            f"{name:15} {_size(one)}, {one['memory_mb']:,.1f} MB to train"
            + (f"; too much for {over} of {clients} clients" if over else "")
        )
    return lines


def _size(one: dict[str, Any]) -> str:
    macs = one["macs"] / 1e6
    return f"{one['parameters']:,.0f} parameters, {macs:,.1f} M multiply-adds per image"
