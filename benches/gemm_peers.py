#!/usr/bin/env python3
"""Matrix products beside those of numpy (OpenBLAS) and of torch, in turns:

    python3 benches/gemm_peers.py [--threads 1,2] [--seconds 3] [--venv DIR]

The environment is that of run.py, which makes it (`run.py --prepare-only`). The contenders `torch` and `onednn` are torch's
`mm`, which asks the BLAS that torch was built with, and its operator of oneDNN with weights laid out beforehand, as our B is.
Prints Markdown: % of the peak of multiply-adds, measured before and behind each shape, at the median call.
"""

import argparse
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import run as run_program
from suite import measure, peers, report

HERE = pathlib.Path(__file__).resolve().parent
ROWS = {1: [1, 4, 8, 16, 128, 512], 2: [4, 8, 32, 128, 2048]}
SHAPES = [(512, 512), (512, 2048), (2048, 512), (768, 768), (768, 3072), (3072, 768)]
LIBRARIES = ["numpy", "torch", "onednn"]
# What a worker's environment tells of its libraries.
TELL = """import numpy, torch
blas = numpy.show_config(mode="dicts")["Build Dependencies"]["blas"]
print("numpy", numpy.__version__, "with", blas["name"], blas["version"])
print("torch", torch.__version__)
print(torch.__config__.show())"""


def sizes(case):
    """M, K and N of `gemm:MxKxN`."""
    return tuple(int(n) for n in case.removeprefix("gemm:").split("x"))


class Products:
    """A library's product on the protocol; the name of the model says nothing."""

    def __init__(self, library, threads):
        self.library, self.threads = library, threads

    def open(self, _):
        pass

    def drawn(self, rows, columns, factor):
        """As gemm-worker draws it."""
        import numpy
        values = (numpy.arange(rows * columns) * factor + 13) % 2001
        return (values.astype("float32") / numpy.float32(1000) - numpy.float32(1)).reshape(rows, columns)

    def case(self, name):
        m, k, n = sizes(name)
        product = getattr(self, self.library)(self.drawn(m, k, 6007), self.drawn(k, n, 7919))

        def call():
            began = peers.now()
            c = product()
            took = peers.now() - began
            return [took], c if self.library == "numpy" else c.numpy()
        return call

    def numpy(self, a, b):
        import numpy
        c = numpy.empty((len(a), b.shape[1]), "float32")
        return lambda: numpy.matmul(a, b, out=c)

    def tensors(self, *arrays):
        import torch
        torch.set_num_threads(self.threads)
        torch.set_grad_enabled(False)
        return torch, *(torch.from_numpy(array) for array in arrays)

    def torch(self, a, b):
        torch, a, b = self.tensors(a, b)
        c = torch.empty(len(a), b.shape[1])
        return lambda: torch.mm(a, b, out=c)

    def onednn(self, a, b):
        torch, a, b = self.tensors(a, b)
        # An operator of linear layers, whose weights have the outputs first.
        weight = torch.ops.mkldnn._reorder_linear_weight(b.T.contiguous(), len(a))
        return lambda: torch.ops.mkldnn._linear_pointwise(a, weight, None, "none", [], "")


def reached(results, flops, peak):
    """% of `peak` GFLOP/s by contender, at the median."""
    return {name: 100 * flops / (measure.summary(ns)["p50"] * 1e6 * peak) for name, ns in results.items()}


def shape(started, threads, k, n, options, limit):
    """{(threads, m, k, n): % of the peak by contender} of all M."""
    cases = [f"gemm:{m}x{k}x{n}" for m in options.rows.get(threads, ROWS[2])]
    name, skipped, found, before = f"{k}x{n}", {}, {}, limit()
    ready = measure.prepare(started, name, cases, skipped)
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            compared, seconds = measure.outcomes(ready[case], name, case, folder, skipped)
        able = [c for c in ready[case] if c.name == report.OURS or compared.get(c.name, {}).get("same")]
        for wrong in compared.keys() - {c.name for c in able}:
            skipped.setdefault(case, {})[wrong] = "another result"
        found[sizes(case)] = measure.race([c for c in able if c.name in seconds], name, case, seconds, options.seconds,
                                          options.turns, skipped)
        for peer, why in skipped.get(case, {}).items():
            print(f"{case}, {threads} threads, {peer}: {why}", file=sys.stderr, flush=True)
    after = limit()
    peak = max(before["gflops_best"], after["gflops_best"])
    return {(threads, *at): reached(ns, 2 * at[0] * at[1] * at[2], peak) for at, ns in found.items()}


def tables(found):
    """Of each number of threads and M the medians over the shapes, and then every cell."""
    names = [report.OURS, *LIBRARIES]

    def shown(values):
        return f"{statistics.median(values):.0f}" if values else "–"

    lines = report.heading(["threads", "M", *names, "shapes where a peer leads"])
    for threads, m in dict.fromkeys(key[:2] for key in found):
        cells = [shares for key, shares in found.items() if key[:2] == (threads, m)]
        led = sum(max(cell, key=cell.get) != report.OURS for cell in cells if cell)
        columns = [shown([cell[name] for cell in cells if name in cell]) for name in names]
        lines.append(report.row([str(threads), str(m), *columns, f"{led} of {len(cells)}"]))
    lines += ["", *report.heading(["threads", "M", "K×N", *names])]
    for (threads, m, k, n), cell in found.items():
        columns = [shown([cell[name]] if name in cell else []) for name in names]
        lines.append(report.row([str(threads), str(m), f"{k}×{n}", *columns]))
    return "\n".join(lines)


def arguments():
    def numbers(text):
        return [int(n) for n in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=pathlib.Path, default=run_program.ROOT / "target" / "peers" / "venv")
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--m", type=numbers, help="rows of A")
    parser.add_argument("--shapes", type=lambda t: [tuple(map(int, s.split("x"))) for s in t.split(",")], default=SHAPES,
                        help="K×N, as 768x3072")
    parser.add_argument("--seconds", type=float, default=3, help="of a product, all contenders together")
    parser.add_argument("--turns", type=int, default=9, help="of each contender")
    options = parser.parse_args()
    options.rows = dict.fromkeys(options.threads, options.m) if options.m else ROWS
    return options


def contenders(options, threads, programs):
    quiet = {name: str(threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    started = [measure.Contender(report.OURS, [programs / "gemm-worker", str(threads)], quiet)]
    for library in LIBRARIES:
        line = [options.venv / "bin" / "python", HERE / "gemm_peers.py", "worker", library, str(threads)]
        started.append(measure.Contender(library, [str(a) for a in line], quiet, cwd=HERE))
    return started


def main():
    options = arguments()
    options.venv = options.venv.resolve()
    build = ["cargo", "build", "--locked", "--release", "-p", "headrow-benches", "--bin=gemm-worker", "--bin=limits"]
    failed = run_program.command(build, cwd=run_program.ROOT)
    if failed:
        sys.exit(f"cargo build: {failed}")
    programs, found = run_program.built(run_program.ROOT), {}
    for threads in options.threads:
        started = contenders(options, threads, programs)
        try:
            for k, n in options.shapes:
                found |= shape(started, threads, k, n, options, lambda: run_program.limits(programs, threads))
        finally:
            for contender in started:
                contender.close()
    told = subprocess.run([options.venv / "bin" / "python", "-c", TELL], capture_output=True, text=True).stdout
    blas = re.search(r"BLAS_INFO=(\w+)", told)
    named = re.compile("numpy|torch|.*(Math Kernel Library|MKL-DNN)")
    lines = [line.strip(" -") for line in told.splitlines() if named.match(line)]
    print("; ".join([*lines, f"torch's `mm` asks {blas[1] if blas else 'a BLAS that it does not name'}"]) + "\n")
    print(tables(found))


def worker(library, threads):
    out = peers.answers()
    peers.serve(Products(library, int(threads)), sys.stdin, out)


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(*sys.argv[2:])
    else:
        main()
