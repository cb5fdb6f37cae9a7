"""Our trainer beside torch's: the same data, tokenizer, shape and recipe.

    python compare.py --headrow PATH/TO/headrow --train a.tsv … --test t.tsv --work DIR speed --threads 1
    python compare.py --headrow PATH/TO/headrow --train a.tsv … --test t.tsv --work DIR quality --target-tokens 1000000

`speed` runs both in turns, some rounds of a few steps each, and prints target tokens a second with medians and minima. `quality` trains
each up to a number of target tokens, translates the first lines of the test file greedily, and prints BLEU (sacreBLEU's, also
of our answers). Needs torch, tokenizers and sacrebleu.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
SHAPE = {"--d-model": 192, "--d-ff": 768, "--layers": 3, "--heads": 4, "--warmup": 400, "--rate-factor": 0.5}
MAX_LENGTH = 40


def arguments():
    a = argparse.ArgumentParser()
    a.add_argument("--headrow", required=True)
    a.add_argument("--train", nargs="+", required=True)
    a.add_argument("--test", nargs="+", required=True)
    a.add_argument("--work", required=True)
    a.add_argument("--vocabulary", type=int, default=6000)
    a.add_argument("--batch-tokens", type=int, default=2000, help="of each side")
    what = a.add_subparsers(dest="what", required=True)
    speed = what.add_parser("speed")
    speed.add_argument("--threads", type=int, default=1)
    speed.add_argument("--rounds", type=int, default=3)
    speed.add_argument("--steps", type=int, default=30)
    quality = what.add_parser("quality")
    quality.add_argument("--threads", type=int, default=1)
    quality.add_argument("--target-tokens", type=int, required=True)
    quality.add_argument("--lines", type=int, default=400)
    quality.add_argument("--only", choices=["headrow", "torch"])
    return a.parse_args()


def flags(options):
    return [str(part) for pair in options.items() for part in pair]


def ours(a, out, *more):
    """The command that trains with our program into a fresh folder."""
    shutil.rmtree(out, ignore_errors=True)
    command = [a.headrow, "train", "--out", str(out), "--data", *a.train, "--max-length", str(MAX_LENGTH)]
    command += flags(SHAPE) + ["--norm", "pre", "--dropout", "0.1", "--smoothing", "0.1"]
    return command + ["--batch-tokens", str(a.batch_tokens), "--threads", str(a.threads), *map(str, more)]


def torchs(a, tokenizer, tokens, *more):
    command = [sys.executable, str(HERE / "torch_trainer.py"), "--train", *a.train, "--tokenizer", str(tokenizer)]
    command += flags(SHAPE) + ["--max-length", str(MAX_LENGTH), "--batch-tokens", str(2 * a.batch_tokens)]
    return command + ["--threads", str(a.threads), "--target-tokens", str(tokens), *map(str, more)]


def reports(folder):
    log = folder / "metrics.jsonl"
    lines = log.read_text().splitlines() if log.exists() else []
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            pass
    return [report for report in found if report.get("kind") == "train"]


def tokenizer_of(a, work):
    """The vocabulary that our program makes of the data, for both."""
    file = work / "tokenizer.json"
    if not file.exists():
        out = work / "vocabulary"
        subprocess.run(ours(a, out, "--tokenizer", f"bpe:{a.vocabulary}", "--steps", 1), check=True)
        shutil.copy(out / "tokenizer.json", file)
    return file


def speed(a, work, tokenizer):
    rates = {"headrow": [], "torch": []}
    for _ in range(a.rounds):
        out = work / "speed"
        more = ["--tokenizer", tokenizer, "--steps", a.steps, "--log-every", 1, "--save-every", 10 * a.steps]
        subprocess.run(ours(a, out, *more), check=True, stderr=subprocess.DEVNULL)
        log = reports(out)
        # The first steps warm up.
        rates["headrow"] += [report["tokens_per_second"] for report in log[a.steps // 4 :]]
        tokens = log[-1]["tokens"]
        lines = subprocess.run(
            torchs(a, tokenizer, tokens, "--report-every", 1), check=True, capture_output=True, text=True
        ).stdout.splitlines()
        log = [{"tokens": 0, "seconds": 0.0}] + [json.loads(line) for line in lines]
        pairs = list(zip(log, log[1:]))[len(log) // 4 :]
        rate = lambda x, y: (y["tokens"] - x["tokens"]) / (y["seconds"] - x["seconds"])
        rates["torch"] += [rate(x, y) for x, y in pairs]
    result = {name: {"median": statistics.median(r), "best": max(r)} for name, r in rates.items()}
    result["ratio of medians"] = result["headrow"]["median"] / result["torch"]["median"]
    result["ratio of best"] = result["headrow"]["best"] / result["torch"]["best"]
    print(json.dumps({"threads": a.threads, **result}, indent=1))


def bleu(a, hypotheses):
    import sacrebleu

    references = []
    for file in a.test:
        for line in open(file, encoding="utf-8"):
            fields = line.rstrip("\n").split("\t")
            if len(fields) == 2 and all(fields):
                references.append(fields[1])
    return sacrebleu.corpus_bleu(hypotheses, [references[: len(hypotheses)]]).score


def quality(a, work, tokenizer):
    if a.only != "torch":
        out = work / "ours"
        more = ["--tokenizer", tokenizer, "--steps", 10**6, "--log-every", 10, "--save-every", 10**6]
        process = subprocess.Popen(ours(a, out, *more), stderr=subprocess.DEVNULL)
        while process.poll() is None:
            log = reports(out)
            if log and log[-1]["tokens"] >= a.target_tokens:
                process.send_signal(signal.SIGINT)
                process.wait()
            time.sleep(0.5)
        model = work / "model"
        shutil.rmtree(model, ignore_errors=True)
        subprocess.run([a.headrow, "average", "--run", str(out), "--last", "1", "--out", str(model)], check=True)
        sources = []
        for file in a.test:
            pairs = (line.rstrip("\n").split("\t") for line in open(file, encoding="utf-8"))
            sources += [pair[0] for pair in pairs if len(pair) == 2 and all(pair)]
        answers = subprocess.run(
            [a.headrow, "translate", "--model", str(model), "--beams", "1", "--max-new-tokens", str(2 * MAX_LENGTH)],
            input="\n".join(sources[: a.lines]) + "\n",
            check=True,
            capture_output=True,
            text=True,
        ).stdout.splitlines()
        last = reports(out)[-1]
        print(json.dumps({"headrow": bleu(a, answers), "tokens": last["tokens"], "seconds": last["seconds"]}))
    if a.only != "headrow":
        file = work / "torch.txt"
        more = ["--test", *a.test, "--hypotheses", file, "--lines", a.lines]
        lines = subprocess.run(
            torchs(a, tokenizer, a.target_tokens, *more), check=True, capture_output=True, text=True
        ).stdout.splitlines()
        last = json.loads(lines[-2])
        answers = file.read_text(encoding="utf-8").splitlines()
        print(json.dumps({"torch": bleu(a, answers), "tokens": last["tokens"], "seconds": last["seconds"]}))


def main():
    a = arguments()
    work = Path(a.work)
    work.mkdir(parents=True, exist_ok=True)
    # Older builds of OpenBLAS are steered by these where a machine sets them.
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        os.environ.pop(name, None)
    tokenizer = tokenizer_of(a, work)
    {"speed": speed, "quality": quality}[a.what](a, work, tokenizer)


if __name__ == "__main__":
    main()
