#!/usr/bin/env python3
"""Whole models beside their peers on this machine, in one command:

    python3 benches/run.py            all cells, 1 and 2 threads; a first run also builds and installs
    python3 benches/run.py --quick    MiniLM alone, in a minute or two

Makes a virtual environment with the peers (or takes --venv), builds our worker and those of candle and rten, makes
seeded models where --models has none, exports them to the peers' formats, measures contenders in turns between
measurements of the machine's limits, compares what they came to, and writes run.json, run.md and SVG drawings. Only
Python's own library is needed. What cannot be had is named and skipped.
"""

import argparse
import datetime
import functools
import hashlib
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
import time

from suite import cells, measure, plots, report

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
# What exporting needs, then each peer.
PACKAGES = {
    "export": ["numpy==2.4.6", "torch==2.15.0", "transformers==5.24.0", "safetensors==0.8.0", "onnx==1.23.2"],
    "onnxruntime": ["onnxruntime==1.32.0"],
    "openvino": ["openvino==2026.4.1"],
    "ctranslate2": ["ctranslate2==4.8.5"],
}
# Peers that are programs in Rust: a workspace in benches/peers each, and the crate that its version is told of.
PROGRAMS = {"candle": "candle-core", "rten": "rten"}
# What is told of us alone after a run of all cells: program → a model and options.
ALONE = {
    "load-ms": ["bert-base"],
    "requests": ["minilm", "--seconds", "1"],
    "contention": ["minilm", "--rounds", "5", "--seconds", "0.5"],
}
PEERS = ["onnxruntime", "openvino", "ctranslate2", "torch", *PROGRAMS]
EXPORTED = {
    "onnxruntime": set(cells.ALL) - {"transformer-base"},
    "openvino": set(cells.ALL) - {"transformer-base"},
    "ctranslate2": set(cells.ALL),
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=pathlib.Path, default=ROOT / "target" / "peers",
                        help="models, exports and the environment")
    parser.add_argument("--models", type=pathlib.Path, help="folder of Hugging Face folders to take instead of seeded ones")
    parser.add_argument("--venv", type=pathlib.Path, help="an environment that is there already")
    parser.add_argument("--out", type=pathlib.Path, help="where the report goes (HOME/report)")
    parser.add_argument("--quick", action="store_true", help="MiniLM alone, two minutes")
    parser.add_argument("--cases", type=lambda t: t.split(","), help="MODEL or MODEL/CASE, with commas")
    parser.add_argument("--peers", type=lambda t: [p for p in t.split(",") if p], default=PEERS, help=",".join(PEERS))
    parser.add_argument("--threads", type=lambda t: [int(n) for n in t.split(",")], default=[1, 2])
    parser.add_argument("--minutes", type=float, help="of measuring (60, or 2 with --quick)")
    parser.add_argument("--rounds", type=int, default=6, help="turns of each contender in a cell")
    parser.add_argument("--pin", action="store_true", help="as many processors to each contender as it has threads")
    parser.add_argument("--prepare-only", action="store_true", help="install, build and export, and measure nothing")
    options = parser.parse_args()
    options.home = options.home.resolve()
    options.out = (options.out or options.home / "report").resolve()
    options.minutes = options.minutes or (2 if options.quick else 60)
    unknown = set(options.peers) - set(PEERS)
    if unknown:
        parser.error(f"no peer {', '.join(sorted(unknown))}: there are {', '.join(PEERS)}")
    return options


def say(text):
    print(text, flush=True)


def command(arguments, **options):
    """Runs it; its last words where it fails, else `None`."""
    line = [str(a) for a in arguments]
    done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode == 0:
        return None
    return (done.stdout.strip().splitlines() or [f"ended with {done.returncode}"])[-1][:300]


def environment(options, absent):
    """The interpreter of the peers' environment, which is made where there is none; `None` when that fails."""
    folder = (options.venv or options.home / "venv").resolve()
    python = folder / "bin" / "python"
    if options.venv is None:
        install(options, folder, python, absent)
    if python.exists():
        return python
    absent.update({peer: f"no environment {folder}" for peer in options.peers if peer not in PROGRAMS})
    return None


def exporters(peers):
    """Whose files the peers read: rten those of ONNX Runtime."""
    return {"onnxruntime" if peer == "rten" else peer for peer in peers} & EXPORTED.keys()


def groups(peers):
    """What to install for the peers: themselves, and what makes the files that they read."""
    wanted = {"export", *peers, *exporters(peers)}
    return [group for group in PACKAGES if group in wanted]


def install(options, folder, python, absent):
    """A virtual environment with what the peers need; what is installed already, at these versions, is left alone."""
    stamp = folder / "installed.json"
    installed = json.loads(stamp.read_text()) if stamp.exists() else {}
    if not python.exists():
        say(f"making {folder}")
        failed = command([sys.executable, "-m", "venv", folder])
        if failed:
            say(f"  {failed}")
            return
    for group in groups(options.peers):
        if installed.get(group) == PACKAGES[group]:
            continue
        say(f"installing {' '.join(PACKAGES[group])}")
        failed = command([python, "-m", "pip", "install", "-q", *PACKAGES[group]])
        if failed:
            say(f"  {failed}")
            absent["torch" if group == "export" else group] = failed
        else:
            installed[group] = PACKAGES[group]
            stamp.write_text(json.dumps(installed))


def build(options, absent):
    """Our programs and the peers'; the folder of ours."""
    say("building")
    programs = [f"--bin={name}" for name in ("peer-worker", "limits", *ALONE)]
    failed = command(["cargo", "build", "--locked", "--release", "-p", "headrow-benches", *programs], cwd=ROOT)
    if failed:
        sys.exit(f"cargo build: {failed}")
    for peer in set(PROGRAMS) & set(options.peers):
        failed = command(["cargo", "build", "--locked", "--release"], cwd=HERE / "peers" / peer)
        if failed:
            absent[peer] = failed
    return built(ROOT)


def built(workspace):
    """Where cargo puts a workspace's programs."""
    target = os.environ.get("CARGO_TARGET_DIR")
    return (pathlib.Path(target).resolve() if target else workspace / "target") / "release"


def folders(options, wanted, python):
    """HOME/models with every model wanted: given, there already, or seeded."""
    home = options.home / "models"
    home.mkdir(parents=True, exist_ok=True)
    for model in wanted:
        link(home / model, options.models and options.models.resolve() / model)
        if not (home / model / "model.safetensors").exists():
            say(f"seeding {model}")
            failed = command([python or sys.executable, "-m", "suite.models", home, model], cwd=HERE)
            if failed:
                sys.exit(f"{model}: {failed}; give a folder with --models")


def link(place, given):
    """Makes `place` the folder given, where there is one: of what an earlier run was given nothing stays then. A folder that
    is no link, seeded or put there, stands in the way of another."""
    if given is None and place.exists():
        if place.is_symlink():
            say(f"{place.name} is {place.resolve()}, as in an earlier run")
        return
    if place.is_symlink():
        place.unlink()
    if given is None or not given.exists():
        return
    if not (given / "model.safetensors").exists():
        sys.exit(f"{given} has no model.safetensors")
    if place.exists():
        sys.exit(f"{place} is there and would hide {given}: remove it, or take another --home")
    place.symlink_to(given)


def identity(folder):
    """What tells a model from others: a hash of its configuration and weights."""
    whole = hashlib.sha256()
    for name in ("config.json", "model.safetensors"):
        with open(folder / name, "rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()


def exports(options, wanted, python):
    """What is not there yet, or was made of another model. A failure shows when the peer is asked for the model."""
    for model in wanted if python else []:
        source = options.home / "models" / model
        peers = [peer for peer in sorted(exporters(options.peers)) if model in EXPORTED[peer]]
        known = identity(source) if peers else None
        for peer in peers:
            stamp = options.home / "exports" / peer / model / "made-of"
            if stamp.exists() and stamp.read_text() == known:
                continue
            say(f"exporting {model} to {peer}")
            # Whatever is there was made of another model, and must not be read where exporting fails.
            shutil.rmtree(stamp.parent, ignore_errors=True)
            places = source.parent, options.home / "exports"
            failed = command([python, "-m", "suite.export", peer, *places, model], cwd=HERE)
            if failed:
                say(f"  {failed}")
            else:
                stamp.write_text(known)


def versions(options, python):
    """Of everything that takes part."""
    def output(*arguments):
        done = subprocess.run([str(a) for a in arguments], capture_output=True, text=True, cwd=ROOT)
        return done.stdout.strip() if done.returncode == 0 else "unknown"

    found = {"Headrow": output("git", "describe", "--always", "--dirty"),
             "rustc": output("rustc", "--version").removeprefix("rustc ").split(" ")[0]}
    for peer in options.peers:
        if peer in PROGRAMS:
            lock = (HERE / "peers" / peer / "Cargo.lock").read_text()
            found[peer] = lock.split(f'name = "{PROGRAMS[peer]}"\nversion = "')[1].split('"')[0]
        elif python:
            found[peer] = output(python, "-c", f"import importlib.metadata as m; print(m.version('{peer}'))")
    return found


def contenders(options, threads, programs, python, absent, log):
    """A process for each, ours first."""
    cpus = sorted(os.sched_getaffinity(0))[:threads] if options.pin else None
    quiet = {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false", "PEERS_HOME": str(options.home)}
    started = [measure.Contender("headrow", [programs / "peer-worker", str(threads)], quiet, log=log, cpus=cpus)]
    for peer in options.peers:
        if peer in absent:
            continue
        if peer in PROGRAMS:
            line = [built(HERE / "peers" / peer) / f"{peer}-worker", str(threads)]
        else:
            line = [python, "-m", "suite.peers", peer, str(threads), options.home]
        started.append(measure.Contender(peer, [str(a) for a in line], quiet, cwd=HERE, log=log, cpus=cpus))
    return started


def limits(programs, threads):
    line = [programs / "limits", "--threads", str(threads), "--rounds", "5"]
    return json.loads(subprocess.run(line, capture_output=True, text=True, check=True).stdout)


def cell(model, case, threads, shape, measured, found, compared, skipped):
    """The record of a cell."""
    flops, size = cells.work(shape, case)
    record = {"model": model, "case": case, "threads": threads, "limits": measured,
              **cells.bound(shape, case, measured), "gflop": flops / 1e9, "intensity": flops / size,
              "results": [{"peer": name, **measure.summary(ns)} for name, ns in found.items()],
              "agreement": compared, "skipped": skipped.get(case, {})}
    return report.finish(record)


def group(options, model, cases, threads, started, limit, shares):
    """All cells of a model at a number of threads."""
    skipped, records = {}, []
    shape = cells.Shape.of(options.home / "models" / model)
    before = limit()
    ready = measure.prepare(started, model, cases, skipped)
    for case in cases:
        # Without ours there is nothing to compare with.
        if not ready[case] or ready[case][0].name != "headrow":
            sys.exit(f"{model} {case}: {skipped[case]['headrow']}")
        with tempfile.TemporaryDirectory() as folder:
            compared, seconds = measure.outcomes(ready[case], model, case, folder, skipped)
        able = [c for c in ready[case] if c.name in seconds]
        found = measure.race(able, model, case, seconds, next(shares), options.rounds, skipped)
        after = limit()
        faster = max(before, after, key=lambda limits: limits["gbs"])
        measured = {**faster, **{key: max(before[key], after[key]) for key in measure.LIMITS}}
        before = after
        records.append(cell(model, case, threads, shape, measured, found, compared, skipped))
        last = records[-1]
        ours = next((r for r in last["results"] if r["peer"] == "headrow"), None)
        say(f"{model} {case} {threads}T: {ours['p50']:.3f} ms, {100 * last['reached']:.0f} % of the bound, "
            f"{last.get('best_peer')} x{last.get('ahead_p50', 0):.2f}" if ours else f"{model} {case} {threads}T: failed")
    return records


def processor():
    information = pathlib.Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def shares(minutes, count, last):
    """Seconds of each of `count` cells: equal parts of what is left of the time, three at least. All but the `last` ones
    keep something back, as two calls of everybody may take longer than a cell's share."""
    end = time.monotonic() + 60 * minutes
    most = 0.5 * 60 * minutes / count
    for left in range(count, 0, -1):
        part = (end - time.monotonic()) / left
        yield max(part if left <= last else min(part, most), 3.0)


def alone(options, programs):
    """What the programs of `ALONE` print."""
    told = {}
    for name, (model, *rest) in ALONE.items():
        say(name)
        done = subprocess.run([programs / name, options.home / "models" / model, *rest], capture_output=True, text=True)
        told[name] = (done.stdout + done.stderr).replace(str(options.home / "models") + "/", "")
    return told


def measured(options, wanted, python, absent):
    """The whole run. The slowest models come first: what they take too long is taken from the fast ones."""
    programs = build(options, absent)
    folders(options, wanted, python)
    exports(options, wanted, python)
    if options.prepare_only:
        return None
    now = datetime.datetime.now(datetime.timezone.utc)
    run = {"schema": 1, "date": now.strftime("%Y-%m-%d %H:%M UTC"), "cpu": processor(), "cores": os.cpu_count(),
           "system": platform.platform(), "versions": versions(options, python), "threads": options.threads,
           "rounds": options.rounds, "minutes": options.minutes, "load_before": os.getloadavg()[0], "absent": absent,
           "cells": []}
    counts = [len(options.threads) * len(cases) for cases in wanted.values()]
    parts = shares(options.minutes, sum(counts), counts[0])
    options.out.mkdir(parents=True, exist_ok=True)
    with open(options.home / "workers.log", "w") as log:
        for model in reversed(wanted):
            for threads in options.threads:
                started = contenders(options, threads, programs, python, absent, log)
                try:
                    limit = functools.partial(limits, programs, threads)
                    run["cells"] += group(options, model, wanted[model], threads, started, limit, parts)
                finally:
                    for contender in started:
                        contender.close()
    run["isa"], run["load_after"] = run["cells"][0]["limits"]["isa"], os.getloadavg()[0]
    run["alone"] = {} if options.quick or options.cases else alone(options, programs)
    order = {model: i for i, model in enumerate(wanted)}
    run["cells"].sort(key=lambda c: (order[c["model"]], c["threads"]))
    return run


def write(run, out):
    """One JSON, one Markdown file, the drawings."""
    (out / "run.json").write_text(json.dumps(run, indent=1) + "\n")
    drawings = {"roofline": plots.roofline(run)}
    for model in dict.fromkeys(c["model"] for c in run["cells"]):
        drawings[f"latency-{model}"] = plots.latency(run, model)
    for name, drawing in drawings.items():
        (out / f"{name}.svg").write_text(drawing)
    shown = "\n".join(f"![{name}]({name}.svg)\n" for name in drawings)
    (out / "run.md").write_text(report.markdown(run) + "\n## Drawings\n\n" + shown)


def main():
    options = arguments()
    wanted = cells.chosen(options.cases, options.quick)
    absent = {}
    python = environment(options, absent)
    run = measured(options, wanted, python, absent)
    if run:
        write(run, options.out)
        say(f"written: {options.out}/run.md, run.json and drawings")


if __name__ == "__main__":
    main()
