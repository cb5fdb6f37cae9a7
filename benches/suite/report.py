"""A run as Markdown: each cell beside the best peer and the machine's bound, then all contenders."""

from suite import cells as costs

OURS = "headrow"
TAILS = "p90", "p99", "p99.9"


def finish(cell):
    """Adds who was the best peer and how far ahead we are, from `results` and `agreement`."""
    ours = next((r for r in cell["results"] if r["peer"] == OURS), None)
    # Who came to something else did not do the same work.
    peers = [r for r in cell["results"] if r["peer"] != OURS and agrees(cell, r["peer"])]
    best = min(peers, key=lambda r: r["p50"], default=None)
    if ours:
        cell["reached"] = cell["bound"] / ours["p50"]
    if best:
        cell["best_peer"] = best["peer"]
    if ours and best:
        cell["ahead_p50"] = best["p50"] / ours["p50"]
    # Only what enough calls stand behind has a p99.
    tail = min((r for r in peers if r["p99"] is not None), key=lambda r: r["p99"], default=None)
    if tail and ours and ours["p99"] is not None:
        cell["best_p99_peer"], cell["ahead_p99"] = tail["peer"], tail["p99"] / ours["p99"]
    return cell


def agrees(cell, peer):
    return cell["agreement"].get(peer, {}).get("same", False)


def milliseconds(value):
    if value is None:
        return "–"
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def ratio(value):
    """Peer's time over ours: bold where the peer leads."""
    if value is None:
        return "–"
    return f"{value:.2f}" if value >= 1 else f"**{value:.2f}**"


def share(value):
    """Of a bound, in percent: marked where it was beaten, which says that its limit was measured in a worse moment."""
    return f"{100 * value:.0f} %{' (!)' if value > 1 else ''}"


def limited(cell):
    """Which limit the bound is."""
    return cell["limit"] + (" *" if cell["cached"] else "")


def row(columns):
    return "| " + " | ".join(columns) + " |"


def heading(columns):
    return [row(columns), "|" + "---|" * len(columns)]


def cells(run):
    lines = heading(["model", "case", "threads", "bound", "of", "Headrow p50", "reached", "best peer, p50", "peer / Headrow",
                     "Headrow p90", "p99", "p99.9", "best peer, p99", "peer / Headrow", "calls"])
    for cell in run["cells"]:
        by = {r["peer"]: r for r in cell["results"]}
        ours, best = by.get(OURS), by.get(cell.get("best_peer"))
        tail = by.get(cell.get("best_p99_peer"))
        lines.append(row([
            cell["model"], f"`{cell['case']}`", str(cell["threads"]), milliseconds(cell["bound"]), limited(cell),
            milliseconds(ours["p50"]) if ours else "–", share(cell["reached"]) if ours else "–",
            f"{best['peer']} {milliseconds(best['p50'])}" if best else "–", ratio(cell.get("ahead_p50")),
            *(milliseconds(ours[key]) if ours else "–" for key in TAILS),
            f"{tail['peer']} {milliseconds(tail['p99'])}" if tail else "–", ratio(cell.get("ahead_p99")),
            str(ours["calls"]) if ours else "–"]))
    return lines


def contenders(run):
    names = []
    for cell in run["cells"]:
        names += [r["peer"] for r in cell["results"] if r["peer"] not in names]
    names.sort(key=lambda name: name != OURS)
    lines = heading(["model", "case", "threads", *names])
    for cell in run["cells"]:
        by = {r["peer"]: r for r in cell["results"]}
        shown = [" / ".join(milliseconds(by[n][key]) for key in ("min", "p50", *TAILS)) if n in by else "–" for n in names]
        lines.append(row([cell["model"], f"`{cell['case']}`", str(cell["threads"]), *shown]))
    return lines


def limits(run):
    """Of each model's cells the least and the most: where they lie apart, the machine had other work."""
    lines = heading(["model", "threads", "GFLOP/s", "GB/s read"])
    groups = {}
    for cell in run["cells"]:
        groups.setdefault((cell["model"], cell["threads"]), []).append(cell["limits"])
    for (model, threads), found in groups.items():
        each = ([limit[key] for limit in found] for key in ("gflops_best", "gbs_best"))
        lines.append(row([model, str(threads), *(f"{min(values):.1f}–{max(values):.1f}" for values in each)]))
    return lines


def behind(run):
    """Cells where a peer leads, by median or by tail, in words."""
    lines = []
    for cell in run["cells"]:
        for key, name, who in (("ahead_p50", "p50", "best_peer"), ("ahead_p99", "p99", "best_p99_peer")):
            if cell.get(key, 1) < 1:
                calls = min(r["calls"] for r in cell["results"] if r["peer"] in (OURS, cell[who]))
                lines.append(f"- {cell['model']} `{cell['case']}`, {cell['threads']} thread(s), {name}: "
                             f"{cell[who]} leads, {cell[key]:.2f} of our time ({calls} calls or more each)")
    return lines or ["None."]


def differences(run):
    """The largest distance of each peer's outcomes from ours, and what could not be compared."""
    lines = heading(["peer", "largest difference / largest value", "tokens equal", "cells that differ"])
    found = {}
    for cell in run["cells"]:
        for peer, a in cell["agreement"].items():
            entry = found.setdefault(peer, {"apart": None, "equal": 0, "of": 0, "differ": []})
            if "apart" in a:
                entry["apart"] = max(entry["apart"] or 0.0, a["apart"] / (a["scale"] or 1.0))
            entry["equal"] += a.get("equal", 0)
            entry["of"] += a.get("of", 0)
            if not a["same"]:
                why = f" ({a['why']})" if "why" in a else ""
                entry["differ"].append(f"{cell['model']} `{cell['case']}` {cell['threads']}T{why}")
    for peer, e in found.items():
        apart = "–" if e["apart"] is None else f"{e['apart']:.1e}"
        tokens = f"{e['equal']} of {e['of']}" if e["of"] else "–"
        lines.append(row([peer, apart, tokens, ", ".join(e["differ"]) or "none"]))
    return lines


def absent(run):
    """Who was not measured, and why."""
    reasons = {(name, reason, "all cells") for name, reason in run["absent"].items()}
    for cell in run["cells"]:
        reasons |= {(name, reason, cell["model"]) for name, reason in cell["skipped"].items()}
    return [f"- {name}, {where}: {reason}" for name, reason, where in sorted(reasons)] or ["Nobody."]


def alone(run):
    """What other programs told, as they told it."""
    lines = [["## Headrow alone", ""]] if run.get("alone") else []
    lines += [[f"`{name}`:", "", "```text", text.rstrip(), "```", ""] for name, text in run.get("alone", {}).items()]
    return sum(lines, [])


def markdown(run):
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    load = f"{run['load_before']:.1f} before and {run['load_after']:.1f} after" if "load_after" in run else "unknown"
    parts = [
        "# Whole models beside their peers", "",
        "Made by `python3 benches/run.py`; docs/PERFORMANCE.md tells how.", "",
        f"{run['date']}, {run['cpu']}, {run['cores']} cores, {run['isa']}; load {load} (contenders take turns, so a few of",
        f"these are their own). {versions}.", "",
        "All in f32, the same weights and ids, in turns; milliseconds of a call, of a step for `decode`. \"Bound\" is what",
        "the operations at the peak of multiply-adds and the weights at the rate of reading memory, both measured before",
        "and behind the cell, take at least, and \"of\" which of the two makes the most of it; *: of these weights a good part",
        f"may stay in the last cache (they are less than {costs.PARTLY} times as large), which makes the bound too long.",
        "\"Reached\" is bound / our median; (!): over 100 %, as the limits were measured in a worse moment than the calls, or of *.",
        "A percentile takes 10 calls (p90), 100 (p99) or 1000 (p99.9), else –. A ratio in bold: the peer leads.", "",
        "## Cells", "", *cells(run), "",
        "## Where a peer leads", "", *behind(run), "",
        "## All contenders", "", "Minimum / p50 / p90 / p99 / p99.9.", "", *contenders(run), "",
        "## Limits", "", *limits(run), "",
        "## The same work", "",
        "States and scores are compared value by value, words by number; who came to something else is no best peer.",
        "", *differences(run), "",
        "## Not measured", "", *absent(run), "",
        *alone(run),
    ]
    return "\n".join(parts)
