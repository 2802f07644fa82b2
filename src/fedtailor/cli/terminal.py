"""What people see: tables."""

from collections.abc import Sequence
from typing import Any

from fedtailor.report.search_facts import mean_entropies
from fedtailor.report.wording import (
    MAX_ROWS,
    client_column,
    duration,
    mean_and_spread,
    percent,
    plus_minus,
)

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"  # options of a choice, in their order
NAMED = 3  # choices that are called the most and the least decided


def result_lines(summaries: list[dict[str, Any]]) -> list[str]:
    """Compare runs: a row each, then their folders."""
    rows = [("method", "test accuracy", "worst 10 %", "untuned", "MB sent", "time")]
    for one in summaries:
        found = one["test_accuracy"]
        rows.append(
            (
                one["algorithm"],
                mean_and_spread(found),
                "-" if found is None else percent(found["worst10"]),
                mean_and_spread(one["untuned"]),
                f"{sum(one['bytes'].values()) / 1e6:.1f}",
                duration(one["wall_s"]),
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
    return [*lines, "", *(f"run folder: {one['run']}" for one in summaries)]


def summary_lines(one: dict[str, Any]) -> list[str]:
    """Tell what a run found, in a few lines."""
    found, selected = one["test_accuracy"], one["val_selected"]
    done = "finished" if one["finished"] else f"not finished: fedtailor resume {one['run']}"
    lines = [
        f"{one['algorithm']} on {one['data']} with {one['space']}: "
        f"{one['rounds']} of {one['planned_rounds']} rounds, {done}",
    ]
    if found is None:
        lines.append("nothing has been tested yet")
    else:
        lines.append(
            f"test accuracy   {mean_and_spread(found)} over {len(found['per_client'])} clients, "
            f"worst 10 % {percent(found['worst10'])} (round {one['evaluated_round']})"
        )
        lines.append(f"untuned         {mean_and_spread(one['untuned'])}")
    lines += _trained_lines(one)
    for labels in ("seen", "unseen"):
        if apart := one[f"{labels}_labels"]:
            clients = f"{len(apart['per_client'])} clients"
            what = f"classes that a client {'trains' if labels == 'seen' else 'does not train'} on"
            lines.append(f"{f'{labels} labels':15} {mean_and_spread(apart)}, {what} ({clients})")
    if selected:
        lines.append(f"val-selected    {mean_and_spread(selected)} (round {selected['round']})")
    if one["other_scores"]:
        scores = one["other_scores"]
        lines.append(
            f"balanced        {mean_and_spread(scores['balanced_accuracy'])}, "
            f"macro F1 {mean_and_spread(scores['macro_f1'])}"
        )
    sent = (f"{nbytes / 1e6:.1f} MB {way}" for way, nbytes in one["bytes"].items())
    lines.append(f"sent            {', '.join(sent)}")
    lines.append(
        f"time            {duration(one['wall_s'])} here, {duration(one['modelled_s'])} modelled"
    )
    if one["failures"]:
        lines.append(f"failures        {one['failures']}: see the events in {one['run']}/log.txt")
    lines.append(f"digest          {one['digest'][:16]}")
    return lines


def _trained_lines(one: dict[str, Any]) -> list[str]:
    """Tell the paper's way of testing, and how long it took to reach what was asked for."""
    lines, found, reach = [], one["trained"], one.get("reach")
    if found:
        missing = f"{len(found['per_client'])} of {found['of']}"
        lines.append(
            f"trained         {mean_and_spread(found)}, the network of a client's last round as it "
            f"was after it ({missing} clients)"
        )
    if reach:
        label = f"to {percent(reach['accuracy'])}"
        for model in ("untuned", "trained")[: 2 if found else 1]:
            at = reach[model]
            what = (
                "never"
                if at is None
                else (
                    f"{duration(at['modelled_s'])} modelled, {at['bytes'] / 1e6:,.1f} MB, "
                    f"round {at['round']}"
                )
            )
            lines.append(f"{label:15} {what} ({model})")
    return lines


def cost_lines(cost: dict[str, Any] | None) -> list[str]:
    """Tell what a client's part of a round takes, and what the server's own does."""
    if cost is None:
        return []
    parts, sent, server = cost["parts"], cost["bytes"], cost["server"]["parts"]
    rows = parts if len(parts) == 1 else {**parts, "sum": cost["sum"]}
    width = max(14, *(len(part) + 1 for part in rows))
    digits = max(len(plus_minus(spent["seconds"])) for spent in rows.values())
    lines = [f"cost            of a client's round, mean of {cost['client_rounds']} ± deviation"]
    for part, spent in rows.items():
        seconds, macs = spent["seconds"], spent["macs"]
        more = f", {plus_minus(macs, 1e6, 1)} M multiply-adds" if macs["mean"] else ""
        lines.append(f"  {part:{width}}{plus_minus(seconds):>{digits}} s of a CPU{more}")
    bytes_ = (f"{plus_minus(sent[way], 1e6)} MB {way}" for way in sent if sent[way])
    own = (f"{plus_minus(spent['seconds'])} s {part}" for part, spent in server.items())
    return [*lines, f"  {'sent':{width}}{', '.join(bytes_)}", f"server          {', '.join(own)}"]


def search_lines(found: dict[str, Any], names: Sequence[str] = ()) -> list[str]:
    """Tell every policy in a line, and which choices are decided."""
    rows = _policies(found)
    if not found.get("choices") or not found.keys() & {"clients", "shared"}:
        return []  # no search, or one that the server knows nothing of
    width = max(len(found["choices"]), len("most probable"))
    lines = [f"search          {_who(found)}, {len(found['choices'])} choices"]
    shown = list(rows.items())[:MAX_ROWS]
    column = client_column(dict(shown), names)
    if rows:
        head = f"{'most probable':{width}}  probability  mean entropy"
        lines.append(f"{column['client']}  {head}")
    for client, one in shown:
        entropy = sum(one["entropy"].values()) / len(one["entropy"])
        genes = _digits(one["genes"])
        shares = f"{one['probability']:11.2g}  {entropy:12.3f}"
        lines.append(f"{column[client]}  {genes:{width}}  {shares}")
    if len(rows) > MAX_ROWS:
        lines.append(f"   ... and {len(rows) - MAX_ROWS} more (--json has all)")
    order = sorted(mean_entropies(found).items(), key=lambda item: item[1])
    if order:
        lines.append(f"most decided    {_named(order[:NAMED])}")
        lines.append(f"least decided   {_named(order[: -NAMED - 1 : -1])}")
        lines.append("                (a digit for each choice: its option, counted from 0;")
        lines.append("                entropy 0 is decided, 1 undecided; names are in --json)")
    return lines


def archive_lines(found: dict[int, Any], names: Sequence[str] = ()) -> list[str]:
    """Tell in a line what each client that searches for itself has found."""
    if not found:
        return []
    width = max(len("best"), *(len(one["genes"]) for one in found.values()))
    lines = ["search          on the clients' own devices; the server knows nothing of it"]
    shown = list(found.items())[:MAX_ROWS]
    column = client_column(dict(shown), names)
    lines.append(f"{column['client']}  {'best':{width}}  last round  archive agrees")
    for client, one in shown:
        genes, alike = _digits(one["genes"]), f"{one['agreement']:.0%}"
        lines.append(f"{column[client]}  {genes:{width}}  {one['round']:10}  {alike:>14}")
    if len(found) > MAX_ROWS:
        lines.append(f"   ... and {len(found) - MAX_ROWS} more (--json has all)")
    return lines


def gain_lines(found: dict[str, Any], names: Sequence[str] = ()) -> list[str]:
    """Tell what is personal about the networks of a run, a line for each client."""
    epochs, rows = found["epochs"], found["per_client"]
    shown = list(rows.items())[:MAX_ROWS]
    column = client_column(dict(shown), names)
    whose = {"theirs": "as they are", "global": "with the weights of the global supernet"}
    lines = [
        f"personalisation gain of {found['algorithm']}: networks of {len(rows)} clients, "
        f"{whose[found['weights']]}, tuned for {epochs} epochs on each client's data",
        f"{column['client']}  own, untuned  own, tuned  others', tuned  gain in points",
    ]
    for client, one in shown:
        untuned, own, others = (percent(one[name]) for name in ("own_untuned", "own", "others"))
        lines.append(
            f"{column[client]}  {untuned:>12}  {own:>10}  {others:>14}  {100 * one['gain']:+14.2f}"
        )
    if len(rows) > MAX_ROWS:
        lines.append(f"   ... and {len(rows) - MAX_ROWS} more (--json has all)")
    ways = f"{'all' if found['all_ways'] else 'of'} {found['ways']:,} ways"
    return [
        *lines,
        f"mean gain       {100 * found['gain']:+.2f} points, p = {found['p']:.2g} "
        f"({ways} of dealing the networks to the clients)",
        "                (test accuracies after the last epoch; every pair is in --json)",
    ]


def _digits(genes: list[int]) -> str:
    return "".join(DIGITS[gene] if gene < len(DIGITS) else "+" for gene in genes)


def _policies(found: dict[str, Any]) -> dict[str, Any]:
    shared = {"shared": found["shared"]} if "shared" in found else {}
    return {**shared, **found.get("clients", {})}


def _who(found: dict[str, Any]) -> str:
    own = len(found.get("clients", {}))
    if not own:
        return "one policy for all clients" if "shared" in found else "no policy has learned yet"
    beside = " beside the one they share" if "shared" in found else ""
    return f"{own} clients have a policy of their own{beside}"


def _named(items: list[tuple[str, float]]) -> str:
    return ", ".join(f"{name} {entropy:.2f}" for name, entropy in items)
