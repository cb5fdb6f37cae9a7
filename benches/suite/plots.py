"""SVG drawings of a run: a roofline with a point for each cell, and bars of latency."""

import math
from xml.sax.saxutils import escape

COLOURS = {"headrow": "#c0392b", "onnxruntime": "#2471a3", "openvino": "#7d3c98", "ctranslate2": "#1e8449",
           "torch": "#d68910", "candle": "#7f8c8d", "rten": "#b7950b"}
OTHER = "#34495e"
NO_FIGURES = "nothing was measured"


class Axis:
    """A logarithmic scale from values to pixels."""

    def __init__(self, values, start, end):
        values = [v for v in values if v > 0]
        low, high = min(values), max(values)
        # A little room at both ends, also when all values are one.
        self.low, self.high = math.log10(low / 1.25), math.log10(high * 1.25)
        self.start, self.end = start, end

    def __call__(self, value):
        part = (math.log10(value) - self.low) / (self.high - self.low)
        return self.start + part * (self.end - self.start)

    def ticks(self):
        """1, 2 and 5 times the powers of ten in range."""
        powers = range(math.floor(self.low), math.ceil(self.high) + 1)
        marks = [m * 10.0**p for p in powers for m in (1, 2, 5)]
        return [m for m in marks if self.low <= math.log10(m) <= self.high]


class Drawing:
    """Elements, and the file they make."""

    def __init__(self, width, height, title):
        self.size, self.parts = (width, height), []
        self.text(width / 2, 20, title, size=14, anchor="middle")

    def add(self, tag, inside="", **attributes):
        def plain(value):
            return f"{value:.1f}" if isinstance(value, float) else str(value)
        given = "".join(f' {k.replace("_", "-")}="{escape(plain(v))}"' for k, v in attributes.items())
        self.parts.append(f"<{tag}{given}>{inside}</{tag}>" if inside else f"<{tag}{given}/>")

    def text(self, x, y, text, size=11, anchor="start", fill="#222222"):
        self.add("text", escape(str(text)), x=float(x), y=float(y), font_size=size, text_anchor=anchor, fill=fill)

    def line(self, x1, y1, x2, y2, stroke="#cccccc", width=1, **more):
        self.add("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), stroke=stroke, stroke_width=width, **more)

    def __str__(self):
        width, height = self.size
        head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
                f'height="{height}" font-family="sans-serif">')
        return "\n".join([head, '<rect width="100%" height="100%" fill="#ffffff"/>', *self.parts, "</svg>", ""])


def number(value):
    return f"{value:g}"


def colour(peer):
    return COLOURS.get(peer, OTHER)


def legend(drawing, names, x, y):
    for i, name in enumerate(names):
        drawing.add("rect", x=float(x), y=float(y + 15 * i - 8), width=10, height=8, fill=colour(name))
        drawing.text(x + 15, y + 15 * i, name)


def roofline(run):
    """Operations per byte of weights against operations a second; a line of limits for each number of threads."""
    drawing = Drawing(900, 560, "Roofline: operations per byte of weights and GFLOP/s reached")
    points = [(cell, r["peer"], cell["gflop"] / (r["p50"] / 1e3))
              for cell in run["cells"] for r in cell["results"] if r["peer"] in ("headrow", cell.get("best_peer"))]
    if not points:
        drawing.text(450, 280, NO_FIGURES, anchor="middle")
        return str(drawing)
    limits = {}
    for cell in run["cells"]:
        best = limits.setdefault(cell["threads"], [0.0, 0.0])
        best[:] = max(best[0], cell["limits"]["gflops_best"]), max(best[1], cell["limits"]["gbs_best"])
    xs = [cell["intensity"] for cell, *_ in points]
    x = Axis([*xs, *(peak / rate for peak, rate in limits.values())], 70, 740)
    y = Axis([p[2] for p in points] + [peak for peak, _ in limits.values()], 500, 50)
    for tick in x.ticks():
        drawing.line(x(tick), 50, x(tick), 500)
        drawing.text(x(tick), 516, number(tick), anchor="middle")
    for tick in y.ticks():
        drawing.line(70, y(tick), 740, y(tick))
        drawing.text(64, y(tick) + 4, number(tick), anchor="end")
    drawing.text(405, 540, "FLOP per byte of weights", anchor="middle")
    drawing.text(12, 40, "GFLOP/s")
    left, right = 10**x.low, 10**x.high
    for threads, (peak, rate) in sorted(limits.items()):
        # Along the rate of memory up to the peak, from where the drawing begins.
        knee, start = peak / rate, max(left, 10**y.low / rate)
        path = (start, start * rate), (knee, peak), (right, peak)
        at = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in path)
        drawing.add("polyline", points=at, fill="none", stroke="#222222", stroke_width=1.5, **{"class": "limit"})
        drawing.text(736, y(peak) - 5, f"{threads} thread{'s' if threads > 1 else ''}", anchor="end")
    for cell, peer, reached in points:
        hint = f"<title>{escape(label(cell))}: {escape(peer)}, {reached:.1f} GFLOP/s</title>"
        solid = {"fill": colour(peer)} if cell["threads"] == 1 else {"fill": "#ffffff"}
        drawing.add("circle", hint, cx=float(x(cell["intensity"])), cy=float(y(reached)), r=4,
                    stroke=colour(peer), stroke_width=1.5, **solid)
    legend(drawing, sorted({p for _, p, _ in points}, key=lambda p: (p != "headrow", p)), 755, 80)
    drawing.text(755, 200, "filled: 1 thread")
    drawing.text(755, 215, "hollow: more")
    return str(drawing)


def label(cell):
    return f"{cell['model']} {cell['case']}, {cell['threads']}T"


def latency(run, model):
    """Bars as long as the median, with a line on to the 99th percentile where there is one, for each contender of each cell."""
    cells = [c for c in run["cells"] if c["model"] == model and c["results"]]
    rows = sum(len(c["results"]) + 1 for c in cells)
    drawing = Drawing(900, 90 + 13 * max(rows, 1), f"{model}: milliseconds, median (bar) to 99th percentile (line)")
    if not cells:
        drawing.text(450, 60, NO_FIGURES, anchor="middle")
        return str(drawing)
    times = [r[key] for c in cells for r in c["results"] for key in ("min", "p50", "p99") if r[key] is not None]
    x, y = Axis([*times, *(c["bound"] for c in cells)], 190, 870), 50
    bottom = 50 + 13 * rows
    for tick in x.ticks():
        drawing.line(x(tick), 36, x(tick), bottom)
        drawing.text(x(tick), bottom + 14, number(tick), size=9, anchor="middle")
    for cell in cells:
        drawing.text(8, y, f"{cell['case']}, {cell['threads']}T", size=10)
        top = y - 8
        for result in sorted(cell["results"], key=lambda r: r["p50"]):
            shade = colour(result["peer"])
            drawing.text(184, y, result["peer"], size=10, anchor="end", fill=shade)
            tail = "" if result["p99"] is None else f" p99 {result['p99']:.3f},"
            hint = f"{escape(result['peer'])} {result['p50']:.3f} ms,{tail} {result['calls']} calls"
            drawing.add("rect", f"<title>{hint}</title>", x=190.0, y=float(y - 8), fill=shade, height=8,
                        width=max(x(result["p50"]) - 190.0, 0.5))
            if tail:
                drawing.line(x(result["p50"]), y - 4, x(result["p99"]), y - 4, stroke=shade, width=2)
            y += 13
        drawing.line(x(cell["bound"]), top, x(cell["bound"]), y - 10, stroke="#222222", width=1.5, stroke_dasharray="3 2")
        y += 13
    drawing.text(870, bottom + 30, "dashed: what the machine's limits allow", size=9, anchor="end")
    return str(drawing)
