"""The logic of the benchmark suite, with contenders that only pretend: `python3 -m unittest suite.tests` in benches/."""

import contextlib
import io
import json
import os
import pathlib
import struct
import sys
import tempfile
import time
import types
import unittest
import unittest.mock
import xml.etree.ElementTree as xml

import gemm_peers
import run as run_program
from suite import cells, measure, plots, report

# A contender of the protocol: its time of a call, what it comes to, and the request at which it fails.
PRETENDER = """
import json, struct, sys
ns, outcome, fails = int(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
for line in sys.stdin:
    request = json.loads(line)
    doing = request.get("op", "time")
    if doing == fails == "time":
        sys.exit(3)
    if fails == "never":
        continue
    if doing == fails:
        answer = {"error": "no such case"}
    elif doing == "output":
        open(request["file"], "wb").write(struct.pack(f"<{len(outcome)}f", *outcome))
        answer = {"ok": 1}
    else:
        answer = {"ok": 1} if doing == "prepare" else {"ns": [ns] * request["min_reps"]}
    print(json.dumps(answer), flush=True)
"""
LIMITS = {"threads": 1, "gflops": 90.0, "gflops_best": 100.0, "gbs": 18.0, "gbs_best": 20.0, "l3": 32 << 20}
BERT = {"model_type": "bert", "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12,
        "intermediate_size": 1536, "vocab_size": 30522}
LLAMA = {"model_type": "llama", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
         "num_key_value_heads": 4, "intermediate_size": 2048, "vocab_size": 32000}


def pretender(name, ns=1000, outcome=(1.0, 2.0), fails="", **options):
    line = [sys.executable, "-c", PRETENDER, str(ns), json.dumps(list(outcome)), fails]
    return measure.Contender(name, line, {}, **options)


def result(peer, p50, p99, calls=1000):
    tails = {"p90": p50, "p99": p99, "p99.9": p99}
    known = {name: tails[name] if calls >= enough else None for name, enough in measure.ENOUGH.items()}
    return {"peer": peer, "calls": calls, "min": p50 * 0.9, "p50": p50, **known, "max": p99}


def cell(results, same=True, **more):
    agreement = {r["peer"]: {"same": same, "apart": 1e-6, "scale": 1.0} for r in results if r["peer"] != report.OURS}
    return report.finish({"model": "minilm", "case": "enc:1x8", "threads": 1, "limits": LIMITS, "bound": 1.0,
                          "limit": cells.READING, "cached": True, "gflop": 0.2, "intensity": 4.0, "results": results,
                          "agreement": agreement, "skipped": {}, **more})


def run(*records):
    return {"date": "2026-01-01", "cpu": "a <processor> & more", "cores": 2, "isa": "avx2", "versions": {"Headrow": "abc"},
            "load_before": 0.0, "load_after": 1.0, "absent": {"candle": "no cargo"}, "cells": list(records)}


class Percentiles(unittest.TestCase):
    def test_ranks_are_the_nearest(self):
        got = measure.summary([n * 1_000_000 for n in range(1000, 0, -1)])
        self.assertEqual([got[k] for k in ("calls", "min", "p50", "p90", "p99", "p99.9", "max")],
                         [1000, 1.0, 500.5, 900.0, 990.0, 999.0, 1000.0])

    def test_few_calls_have_a_middle_and_no_tail(self):
        got = measure.summary([3_000_000, 1_000_000])
        self.assertEqual((got["p50"], got["p90"], got["max"]), (2.0, None, 3.0))
        for calls, known in ((10, ["p90"]), (99, ["p90"]), (100, ["p90", "p99"]), (999, ["p90", "p99"])):
            got = measure.summary([1_000_000] * calls)
            self.assertEqual([name for name in measure.ENOUGH if got[name] is not None], known)


class Costs(unittest.TestCase):
    def test_an_encoder_by_hand(self):
        weights = 6 * (4 * 384**2 + 2 * 384 * 1536)
        flops, size = cells.work(cells.Shape(BERT), "enc:2x8")
        self.assertEqual(size, 4 * weights)
        self.assertEqual(flops, 2 * 16 * weights + 4 * 384 * 6 * 2 * 64)

    def test_grouped_heads_and_a_gate(self):
        layer = 768 * (768 + 256 + 256 + 768) + 3 * 768 * 2048
        flops, size = cells.work(cells.Shape(LLAMA), "decode:1x128")
        seen = 128 + 16.5
        self.assertEqual(size, 4 * (12 * layer + 768 * 32000) + 8 * 256 * 12 * seen)
        self.assertEqual(flops, 2 * (12 * layer + 768 * 32000) + 4 * 768 * 12 * seen)

    def test_the_bound_is_the_larger_of_two(self):
        shape = cells.Shape(BERT)
        flops, size = cells.work(shape, "enc:1x8")
        for l3, cached in ((32, True), (8, False)):
            found = cells.bound(shape, "enc:1x8", {**LIMITS, "l3": l3 << 20})
            self.assertAlmostEqual(found["bound"], size / 20e9 * 1e3)
            self.assertEqual((found["limit"], found["cached"]), (cells.READING, cached))
        found = cells.bound(shape, "enc:1x8", {**LIMITS, "l3": 64 << 20})
        self.assertAlmostEqual(found["bound"], flops / 100e9 * 1e3)
        flops, _ = cells.work(shape, "enc:1x512")
        found = cells.bound(shape, "enc:1x512", LIMITS)
        self.assertAlmostEqual(found["bound"], flops / 100e9 * 1e3)
        self.assertEqual((found["limit"], found["cached"]), (cells.ARITHMETIC, False))

    def test_a_translation_has_two_phases(self):
        config = {"model_type": "marian", "d_model": 512, "decoder_layers": 6, "decoder_attention_heads": 8,
                  "decoder_ffn_dim": 2048, "vocab_size": 37000}
        once, steps = cells.phases(cells.Shape(config), "s2s:1x4")
        self.assertEqual((once[0], steps[0]), (1, 32))
        self.assertEqual(steps[2], 4 * (6 * (6 * 512**2 + 2 * 512 * 2048) + 512 * 37000))

    def test_names_of_cells(self):
        self.assertEqual(cells.chosen(["minilm/enc:1x8", "gpt2"], False),
                         {"minilm": ["enc:1x8"], "gpt2": cells.DECODE})
        self.assertIn("enc:32x128", cells.chosen(None, False)["minilm"])
        self.assertEqual(list(cells.chosen(None, True)), ["minilm"])
        for wrong in ("nobody", "minilm/enc:8", "minilm/what:1x8"):
            with self.assertRaises(ValueError):
                cells.chosen([wrong], False)


class Comparisons(unittest.TestCase):
    def floats(self, *values):
        return struct.pack(f"<{len(values)}f", *values)

    def test_values(self):
        ours = self.floats(1.0, -2.0)
        near = measure.compare("enc", ours, self.floats(1.0, -2.0 + 2**-20))
        self.assertTrue(near["same"])
        self.assertEqual((near["apart"], near["scale"]), (2**-20, 2.0))
        self.assertFalse(measure.compare("enc", ours, self.floats(1.0, -1.9))["same"])
        self.assertFalse(measure.compare("enc", ours, self.floats(1.0))["same"])
        for wrong in (float("nan"), float("inf")):
            found = measure.compare("enc", ours, self.floats(wrong, -2.0))
            self.assertEqual(found, {"same": False, "why": "not all values are finite"})

    def test_tokens(self):
        ours, theirs = struct.pack("<3I", 1, 2, 3), struct.pack("<3I", 1, 2, 4)
        self.assertEqual(measure.compare("decode", ours, theirs), {"same": False, "equal": 2, "of": 3})
        self.assertTrue(measure.compare("s2s", ours, ours)["same"])


class Turns(unittest.TestCase):
    def setUp(self):
        self.started = []

    def tearDown(self):
        for contender in self.started:
            contender.close()

    def start(self, *arguments, **options):
        self.started.append(pretender(*arguments, **options))
        return self.started[-1]

    def test_a_cell(self):
        ours, other, wrong = self.start("headrow"), self.start("near", 3000), self.start("far", 1, (1.0, 5.0))
        unable, dies = self.start("unable", fails="prepare"), self.start("dies", fails="time")
        skipped, case = {}, "enc:1x8"
        ready = measure.prepare([ours, other, wrong, unable, dies], "minilm", [case], skipped)
        self.assertEqual([c.name for c in ready[case]], ["headrow", "near", "far", "dies"])
        with tempfile.TemporaryDirectory() as folder:
            compared, seconds = measure.outcomes(ready[case], "minilm", case, folder, skipped)
            self.assertEqual(list(pathlib.Path(folder).iterdir()), [])
        self.assertEqual({name: c["same"] for name, c in compared.items()}, {"near": True, "far": False, "dies": True})
        times = measure.race(ready[case], "minilm", case, seconds, 60.0, 3, skipped)
        self.assertEqual(set(times), {"headrow", "near", "far"})
        self.assertEqual(times["near"], [3000] * 3)
        self.assertEqual(set(skipped[case]), {"unable", "dies"})
        self.assertIn("no such case", skipped[case]["unable"])

    def test_where_ours_fails_no_peer_is_compared_with(self):
        ours, *peers = self.start("headrow", fails="output"), self.start("near"), self.start("far", 1, (1.0, 5.0))
        skipped, case = {}, "enc:1x8"
        with tempfile.TemporaryDirectory() as folder:
            found = measure.outcomes([ours, *peers], "minilm", case, folder, skipped)
            self.assertEqual(list(pathlib.Path(folder).iterdir()), [])
        self.assertEqual((found, skipped), (({}, {}), {case: {"headrow": "no such case"}}))
        self.assertEqual(measure.race([], "minilm", case, {}, 0.5, 3, skipped), {})
        failed = cell([], skipped=skipped[case])
        self.assertNotIn("reached", failed)
        self.assertIn("no such case", report.markdown(run(failed)))

    def test_who_fails_beside_ours_is_left_out(self):
        ours, other, near = self.start("headrow"), self.start("unable", fails="output"), self.start("near")
        skipped, case = {}, "enc:1x8"
        with tempfile.TemporaryDirectory() as folder:
            compared, seconds = measure.outcomes([ours, other, near], "minilm", case, folder, skipped)
        self.assertEqual((set(compared), set(seconds)), ({"near"}, {"headrow", "near"}))
        self.assertEqual(set(skipped[case]), {"unable"})

    def test_turns_end_with_the_time_after_two(self):
        ours = self.start("headrow")
        times = measure.race([ours], "minilm", "enc:1x8", {"headrow": 1.0}, 0.0, 9, {})
        self.assertEqual(len(times["headrow"]), 2)

    def test_the_order_and_the_calls_before_are_fair(self):
        asked = []

        class Asked:
            def __init__(self, name):
                self.name = name

            def ask(self, **request):
                asked.append((self.name, request["warm"]))
                return {"ns": [1]}

        names = ["headrow", "near", "far"]
        for longest, warm in ((0.004, 3), (1.0, 1)):
            asked.clear()
            seconds = dict(zip(names, (0.001, 0.002, longest)))
            measure.race([Asked(n) for n in names], "minilm", "enc:1x8", seconds, 60.0, 12, {})
            self.assertEqual({w for _, w in asked}, {warm})
            rounds = [[name for name, _ in asked[i:i + 3]] for i in range(0, 36, 3)]
            self.assertTrue(all(sorted(r) == sorted(names) for r in rounds))
            followers = {b for (a, _), (b, _) in zip(asked, asked[1:]) if a == "headrow"}
            self.assertLessEqual({"near", "far"}, followers)
        asked.clear()
        measure.race([Asked(n) for n in names], "minilm", "enc:1x8", dict.fromkeys(names, 9.0), 1.0, 2, {})
        self.assertEqual({w for _, w in asked}, {0})

    def test_who_never_answers_is_named_and_ended(self):
        silent, skipped = self.start("silent", fails="never", patience=0.2), {}
        ready = measure.prepare([silent], "minilm", ["enc:1x8", "enc:1x32"], skipped)
        self.assertEqual(ready, {"enc:1x8": [], "enc:1x32": []})
        self.assertEqual(skipped["enc:1x8"]["silent"], "silent gave no answer to prepare minilm enc:1x8 in 0 s")
        self.assertIn("ended", skipped["enc:1x32"]["silent"])

    def test_who_waits_is_stopped(self):
        ours = self.start("headrow")
        ours.ask(op="prepare", model="minilm", case="enc:1x8")
        state = pathlib.Path(f"/proc/{ours.process.pid}/stat")
        if not state.exists():
            self.skipTest("this system does not tell the state of a process")
        end = time.monotonic() + 5
        while (found := state.read_text().rsplit(")", 1)[1].split()[0]) != "T" and time.monotonic() < end:
            time.sleep(0.01)
        self.assertEqual(found, "T")


class Preparations(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.home = pathlib.Path(folder.name)

    def model(self, name, weights=b"weights"):
        (self.home / name).mkdir(parents=True)
        (self.home / name / "config.json").write_text("{}")
        (self.home / name / "model.safetensors").write_bytes(weights)
        return self.home / name

    def test_what_the_exports_need_is_installed(self):
        self.assertEqual(run_program.groups(["rten"]), ["export", "onnxruntime"])
        self.assertEqual(run_program.groups(["candle"]), ["export"])
        self.assertEqual(run_program.groups(run_program.PEERS), list(run_program.PACKAGES))

    def test_a_folder_given_is_taken_or_refused(self):
        place, first, second = self.home / "minilm", self.model("first"), self.model("second")
        for given in (first, second, second):
            run_program.link(place, given)
            self.assertEqual(place.resolve(), given.resolve())
        # Of a link to what is gone, or was given before, nothing stays.
        run_program.link(place, self.home / "none")
        self.assertFalse(place.is_symlink())
        seeded = self.model("minilm")
        run_program.link(place, None)
        self.assertFalse(seeded.is_symlink())
        for given in (first, self.home):
            with self.assertRaises(SystemExit):
                run_program.link(place, given)

    def test_exports_are_of_these_weights(self):
        source = self.model("models/minilm")
        made, calls = self.home / "exports" / "openvino" / "minilm", []

        def export(line, **_):
            calls.append(line[3])
            made.mkdir(parents=True)

        options = types.SimpleNamespace(home=self.home, peers=["openvino", "torch"])
        with unittest.mock.patch.multiple(run_program, command=export, say=lambda _: None):
            run_program.exports(options, ["minilm"], "python")
            run_program.exports(options, ["minilm"], "python")
            self.assertEqual(calls, ["openvino"])
            # Other weights with an older date.
            (source / "model.safetensors").write_bytes(b"others.")
            os.utime(source / "model.safetensors", (1, 1))
            run_program.exports(options, ["minilm"], "python")
            self.assertEqual(len(calls), 2)


class Shares(unittest.TestCase):
    def test_time_is_kept_back_for_the_last(self):
        parts = run_program.shares(1.0, 4, 2)
        first, second, third, fourth = parts
        self.assertEqual((first, second), (7.5, 7.5))
        # No time has gone by here: half of it, and then all.
        self.assertAlmostEqual(third, 30.0, places=0)
        self.assertAlmostEqual(fourth, 60.0, places=0)

    def test_every_cell_has_some(self):
        self.assertEqual(list(run_program.shares(0.0, 2, 1)), [3.0, 3.0])


class Reports(unittest.TestCase):
    def test_ahead_behind_and_the_bound(self):
        ahead = cell([result("headrow", 2.0, 3.0), result("torch", 9.0, 9.5), result("openvino", 5.0, 12.0)])
        self.assertEqual((ahead["best_peer"], ahead["ahead_p50"], ahead["reached"]), ("openvino", 2.5, 0.5))
        self.assertEqual((ahead["best_p99_peer"], ahead["ahead_p99"]), ("torch", 9.5 / 3.0))
        behind = cell([result("headrow", 2.0, 3.0), result("torch", 1.0, 6.0, 1200)])
        text = report.markdown(run(ahead, behind))
        self.assertIn("| minilm | `enc:1x8` | 1 | 1 | weights * | 2 | 50 % | openvino 5 | 2.50 | 2 | 3 | 3 | torch 9.5 |", text)
        self.assertIn("**0.50**", text)
        self.assertIn("1 thread(s), p50: torch leads, 0.50 of our time (1000 calls or more each)", text)
        self.assertNotIn("p99: torch leads", text)
        self.assertIn("- candle, all cells: no cargo", text)

    def test_what_is_told_of_us_alone_is_there_as_it_was_told(self):
        text = report.markdown({**run(cell([])), "alone": {"load-ms": "load  7 ms\n"}})
        self.assertIn("## Headrow alone\n\n`load-ms`:\n\n```text\nload  7 ms\n```\n", text)
        self.assertNotIn("alone\n\n`", report.markdown(run(cell([]))))

    def test_other_work_is_no_competition(self):
        other = cell([result("headrow", 2.0, 3.0), result("torch", 1.0, 1.0)], same=False)
        self.assertNotIn("best_peer", other)
        self.assertIn("minilm `enc:1x8` 1T |", report.markdown(run(other)))

    def test_a_few_calls_have_no_tail(self):
        few = cell([result("headrow", 2.0, 3.0), result("torch", 4.0, 4.0, calls=99)])
        self.assertEqual(few["ahead_p50"], 2.0)
        self.assertNotIn("ahead_p99", few)
        few = cell([result("headrow", 2.0, 3.0, calls=9), result("torch", 4.0, 4.0)])
        self.assertNotIn("ahead_p99", few)
        self.assertIn("1.8 / 2 / – / – / –", report.markdown(run(few)))

    def test_more_than_the_bound_is_marked(self):
        self.assertEqual([report.share(value) for value in (0.5, 1.0, 1.26)], ["50 %", "100 %", "126 % (!)"])

    def test_every_row_has_its_columns(self):
        text = report.markdown(run(cell([result("headrow", 2.0, 3.0), result("torch", 4.0, 4.0)]), cell([])))
        for table in text.split("\n\n"):
            rows = [line for line in table.splitlines() if line.startswith("|")]
            self.assertEqual(len({line.count("|") for line in rows[:1] + rows[2:]}), 1 if rows else 0, table)


class Products(unittest.TestCase):
    def test_shares_of_the_peak(self):
        # 2e6 operations in 100 µs are 20 GFLOP/s.
        self.assertEqual(gemm_peers.reached({"headrow": [100_000, 90_000, 110_000]}, 2e6, 80.0), {"headrow": 25.0})
        self.assertEqual(gemm_peers.sizes("gemm:4x768x3072"), (4, 768, 3072))

    def test_the_tables(self):
        found = {(1, 4, 512, 512): {"headrow": 80.0, "numpy": 20.0}, (1, 4, 768, 768): {"headrow": 60.0, "torch": 70.0},
                 (2, 8, 512, 512): {}}
        text = gemm_peers.tables(found)
        self.assertIn("| 1 | 4 | 70 | 20 | 70 | – | 1 of 2 |", text)
        self.assertIn("| 1 | 4 | 768×768 | 60 | – | 70 | – |", text)
        self.assertIn("| 2 | 8 | – | – | – | – | 0 of 1 |", text)

    def test_who_comes_to_another_product_is_left_out(self):
        started = [pretender("headrow", 1000), pretender("numpy", 4000), pretender("torch", 1, (1.0, 5.0))]
        options = types.SimpleNamespace(rows={1: [2]}, seconds=60.0, turns=2)
        try:
            with contextlib.redirect_stderr(io.StringIO()) as told:
                found = gemm_peers.shape(started, 1, 10, 25, options, lambda: LIMITS)
        finally:
            for contender in started:
                contender.close()
        self.assertEqual(found, {(1, 2, 10, 25): {"headrow": 1.0, "numpy": 0.25}})
        self.assertIn("torch: another result", told.getvalue())


class Drawings(unittest.TestCase):
    def parsed(self, text):
        root = xml.fromstring(text)
        tags = [element.tag.rsplit("}", 1)[1] for element in root.iter()]
        for element in root.iter():
            for name in ("x", "y", "cx", "cy", "x1", "x2", "y1", "y2", "width"):
                if "%" not in element.get(name, "0"):
                    self.assertTrue(-1.0 <= float(element.get(name, "0")) <= 5000.0, element.attrib)
        return root, tags

    def test_a_point_for_us_and_for_the_best_peer(self):
        text = plots.roofline(run(cell([result("headrow", 2.0, 3.0), result("torch", 4.0, 4.0), result("openvino", 5.0, 5.0)]),
                                  cell([result("headrow", 1.0, 1.0)], threads=2, limits={**LIMITS, "gflops_best": 190.0})))
        root, tags = self.parsed(text)
        self.assertEqual((tags.count("circle"), tags.count("polyline")), (3, 2))
        ours, peer = (c for c in root.iter("{http://www.w3.org/2000/svg}circle") if c.get("fill") != "#ffffff")
        # Twice as fast lies higher, at the same intensity.
        self.assertEqual(ours.get("cx"), peer.get("cx"))
        self.assertLess(float(ours.get("cy")), float(peer.get("cy")))

    def test_a_bar_for_each_contender(self):
        whole = run(cell([result("headrow", 2.0, 3.0), result("a <peer>", 4.0, 8.0, calls=5)]))
        root, tags = self.parsed(plots.latency(whole, "minilm"))
        bars = [r for r in root.iter("{http://www.w3.org/2000/svg}rect") if r.get("height") == "8"]
        self.assertEqual(len(bars), 2)
        self.assertLess(float(bars[0].get("width")), float(bars[1].get("width")))

    def test_nothing_measured(self):
        for text in (plots.roofline(run()), plots.latency(run(), "minilm")):
            self.parsed(text)
            self.assertIn(plots.NO_FIGURES, text)

    def test_axes(self):
        axis = plots.Axis([1.0, 100.0], 0, 400)
        self.assertAlmostEqual(axis(10.0), 200.0)
        self.assertEqual(axis.ticks(), [1, 2, 5, 10, 20, 50, 100])


if __name__ == "__main__":
    unittest.main()
