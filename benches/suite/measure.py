"""Contenders in turns: processes on one line protocol, timed by themselves.

The protocol is that of benches/peers/protocol. Whoever is not at work is stopped (SIGSTOP), so that no helper of
one contender that still spins for work takes a core from another.
"""

import array
import json
import math
import os
import pathlib
import random
import select
import signal
import statistics
import subprocess
import sys
import time

# What the `limits` program measures: multiply-adds and reading, their medians and bests.
LIMITS = ("gflops", "gflops_best", "gbs", "gbs_best")
# Seconds after which who has not answered never will: the slowest to load a model or to make a call take a tenth of it.
PATIENCE = 600
# Calls without which a percentile is nothing but one of the longest.
ENOUGH = {"p90": 10, "p99": 100, "p99.9": 1000}


class Failed(Exception):
    """A contender cannot do what was asked."""


class Contender:
    """A process on the protocol; `environment` is added to this one's."""

    def __init__(self, name, command, environment, cwd=None, log=None, cpus=None, patience=PATIENCE):
        self.name, self.patience, self.asked, self.unread = name, patience, {}, b""
        keep = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
        pin = (lambda: os.sched_setaffinity(0, cpus)) if cpus else None
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            env={**keep, **environment}, cwd=cwd, preexec_fn=pin)

    def send(self, **request):
        self._signal(signal.SIGCONT)
        self.asked = request
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        except OSError as error:
            raise Failed(f"ended: {error}") from error

    def receive(self):
        line = self._line(self.patience + self.asked.get("budget", 0))
        if not line:
            raise Failed(f"ended with {self.process.wait()}")
        self._signal(signal.SIGSTOP)
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(answer["error"])
        return answer

    def _line(self, seconds):
        """Its next line; nothing when it has ended. Who is late is ended, as an answer that came later would be taken for
        that to another request."""
        end = time.monotonic() + seconds
        while b"\n" not in self.unread:
            if not select.select([self.process.stdout], [], [], max(end - time.monotonic(), 0))[0]:
                self.process.kill()
                what = " ".join(str(self.asked[key]) for key in ("op", "model", "case") if key in self.asked)
                raise Failed(f"{self.name} gave no answer to {what} in {seconds:.0f} s")
            part = os.read(self.process.stdout.fileno(), 1 << 16)
            if not part:
                return b""
            self.unread += part
        line, _, self.unread = self.unread.partition(b"\n")
        return line

    def ask(self, **request):
        self.send(**request)
        return self.receive()

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass  # It had not read its last request.

    def _signal(self, number):
        if self.process.poll() is None:
            self.process.send_signal(number)


def percentile(ordered, tenths):
    """Nearest rank: of n times in order the one numbered ⌈tenths/1000 · n⌉."""
    rank = -(-tenths * len(ordered) // 1000)
    return ordered[max(rank, 1) - 1]


def summary(nanoseconds):
    """Milliseconds; `None` for percentiles that too few calls stand behind."""
    ordered = sorted(nanoseconds)
    row = {"min": ordered[0], "max": ordered[-1], "p50": statistics.median(ordered)}
    for name, tenths in (("p90", 900), ("p99", 990), ("p99.9", 999)):
        row[name] = percentile(ordered, tenths) if len(ordered) >= ENOUGH[name] else None
    row = {name: value if value is None else value / 1e6 for name, value in row.items()}
    return {"calls": len(ordered), **row}


def compare(kind, ours, theirs):
    """How far two contenders' outcomes (bytes) lie apart."""
    if len(ours) != len(theirs):
        return {"same": False, "why": f"{len(theirs)} bytes against {len(ours)}"}
    if kind in ("enc", "prefill", "gemm"):
        a, b = values("f", ours), values("f", theirs)
        if not all(map(math.isfinite, a)) or not all(map(math.isfinite, b)):
            return {"same": False, "why": "not all values are finite"}
        scale = max(map(abs, a), default=0.0)
        apart = max((abs(x - y) for x, y in zip(a, b)), default=0.0)
        return {"same": apart <= 1e-3 * scale, "apart": apart, "scale": scale}
    a, b = values("I", ours), values("I", theirs)
    equal = sum(x == y for x, y in zip(a, b))
    return {"same": equal == len(a), "equal": equal, "of": len(a)}


def values(code, data):
    numbers = array.array(code)
    numbers.frombytes(data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def prepare(contenders, model, cases, skipped):
    """All load at once; who cannot do a case is named in `skipped[case]`. Case → those who can."""
    ready = {}
    for case in cases:
        request = {"op": "prepare", "model": model, "case": case}
        asked = [c for c in contenders if attempt(c, case, skipped, lambda c: c.send(**request))]
        ready[case] = [c for c in asked if attempt(c, case, skipped, Contender.receive)]
    return ready


def attempt(contender, case, skipped, call):
    """What the call gives; `None` where it failed, which is written down."""
    try:
        return call(contender) or True
    except Failed as error:
        skipped.setdefault(case, {})[contender.name] = str(error)[:300]
        return None


def outcomes(contenders, model, case, folder, skipped):
    """A call of each, the first being ours: {name: comparison with ours}, and the seconds of the calls by name.

    Where ours fails there is nothing to compare with: nobody else is called, and both are empty.
    """
    kind, compared, seconds, ours = case.partition(":")[0], {}, {}, None
    for contender in contenders:
        file = pathlib.Path(folder) / f"outcome-{contender.name}"
        request = {"op": "output", "model": model, "case": case, "file": str(file)}
        started = time.monotonic()
        if not attempt(contender, case, skipped, lambda c: c.ask(**request)):
            if contender is contenders[0]:
                break
            continue
        seconds[contender.name] = time.monotonic() - started
        data = file.read_bytes()
        file.unlink()
        if ours is None:
            ours = data
        else:
            compared[contender.name] = compare(kind, ours, data)
    return compared, seconds


def race(contenders, model, case, seconds, budget, rounds, skipped):
    """Turns until the budget (in seconds, of all together) is over, two at least: {name: nanoseconds}.

    `seconds` is what a call of each took. The order is drawn anew each round, so that nobody always follows the same one:
    what a contender leaves in the caches, and how hot the processor is, the next one meets. The draw is the same in each run.
    """
    if not contenders:
        return {}
    times = {c.name: [] for c in contenders}
    slice_ = budget / rounds / len(contenders)
    # What was stopped for a while finds caches cold: calls before those that are timed, as many for everybody. Where even the
    # fastest call is longer than a slice, filling them is a small part of it.
    taken = [seconds[c.name] for c in contenders]
    warm = 3 if max(taken) < 0.005 else 1 if min(taken) < slice_ else 0
    order, draw = list(contenders), random.Random(f"{model} {case}")
    end = time.monotonic() + budget
    for turn in range(rounds):
        if turn >= 2 and time.monotonic() > end:
            break
        draw.shuffle(order)
        for contender in order:
            request = {"model": model, "case": case, "budget": slice_, "min_reps": 1, "warm": warm}
            answer = attempt(contender, case, skipped, lambda c: c.ask(**request))
            times[contender.name] += answer["ns"] if answer else []
    return {name: ns for name, ns in times.items() if ns}
