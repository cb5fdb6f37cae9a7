"""Our trainer beside torch's: the same data, tokenizer, shape and recipe.

    python compare.py --headrow PATH/TO/headrow --train a.tsv … --test t.tsv --work DIR speed --threads 1
    python compare.py --headrow PATH/TO/headrow --train a.tsv … --test t.tsv --work DIR quality --target-tokens 1000000

`speed` runs both in turns, some rounds of a few steps each, and prints target tokens a second with medians and minima. `quality`
trains each up to a number of target tokens, translates the test lines that are no longer than those of the training greedily, and
prints BLEU (sacreBLEU's, also of our answers) and the perplexity of their targets; of several seeds also the mean and its standard error. Needs torch, tokenizers and sacrebleu.
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
    quality.add_argument("--lines", type=int, help="the first so many, instead of all")
    quality.add_argument("--seeds", type=lambda t: [int(n) for n in t.split(",")], default=[1], help="of the trainings")
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
    command += flags(SHAPE) + ["--max-length", str(MAX_LENGTH), "--batch-tokens", str(a.batch_tokens)]
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


def tested(a, work, tokenizer):
    """The test pairs that are no longer than those of the training, and a file of them."""
    from tokenizers import Tokenizer

    length = lambda text, words=Tokenizer.from_file(str(tokenizer)): len(words.encode(text, add_special_tokens=False).ids)
    pairs = []
    for file in a.test:
        fields = (line.rstrip("\n").split("\t") for line in open(file, encoding="utf-8"))
        pairs += [pair for pair in fields if len(pair) == 2 and all(pair) and length(pair[0]) < MAX_LENGTH]
    pairs = pairs[: a.lines]
    file = work / "test.tsv"
    file.write_text("".join("\t".join(pair) + "\n" for pair in pairs), encoding="utf-8")
    return pairs, file


def headrow_learns(a, work, tokenizer, seed, pairs):
    """Answers, and the last report of the training with the perplexity of the targets."""
    out, model = work / f"ours-{seed}", work / f"model-{seed}"
    more = ["--tokenizer", tokenizer, "--seed", seed, "--steps", 10**6, "--log-every", 1, "--save-every", 10**6]
    process = subprocess.Popen(ours(a, out, *more), stderr=subprocess.DEVNULL)
    while process.poll() is None:
        log = reports(out)
        if log and log[-1]["tokens"] >= a.target_tokens:
            process.send_signal(signal.SIGINT)
            process.wait()
        time.sleep(0.3)
    shutil.rmtree(model, ignore_errors=True)
    subprocess.run([a.headrow, "average", "--run", str(out), "--last", "1", "--out", str(model)], check=True)
    answers = subprocess.run(
        [a.headrow, "translate", "--model", str(model), "--beams", "1", "--max-new-tokens", str(2 * MAX_LENGTH)],
        input="".join(source + "\n" for source, _ in pairs),
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    line = [a.headrow, "evaluate", "--model", str(model), "--data", str(work / "test.tsv"), "--metrics", "perplexity", "--json"]
    found = json.loads(subprocess.run(line, check=True, capture_output=True, text=True).stdout)
    return answers, reports(out)[-1] | {"perplexity": found["perplexity"]}


def torch_learns(a, work, tokenizer, seed, file):
    """The same of torch."""
    answers = work / f"torch-{seed}.txt"
    more = ["--seed", seed, "--test", file, "--hypotheses", answers]
    log = work / f"torch-{seed}.jsonl"
    with open(log, "w", encoding="utf-8") as out:
        subprocess.run(torchs(a, tokenizer, a.target_tokens, *more), check=True, stdout=out)
    lines = log.read_text(encoding="utf-8").splitlines()
    last, tested = map(json.loads, lines[-2:])
    return answers.read_text(encoding="utf-8").splitlines(), last | {"perplexity": tested["perplexity"]}


def quality(a, work, tokenizer):
    import sacrebleu

    pairs, file = tested(a, work, tokenizer)
    scores = {name: [] for name in ("headrow", "torch") if a.only in (None, name)}
    for seed in a.seeds:
        for name, found in scores.items():
            learns, tests = (headrow_learns, pairs) if name == "headrow" else (torch_learns, file)
            answers, last = learns(a, work, tokenizer, seed, tests)
            found.append(sacrebleu.corpus_bleu(answers, [[target for _, target in pairs]]).score)
            told = {key: last[key] for key in ("perplexity", "step", "tokens", "seconds")}
            print(json.dumps({name: found[-1], "seed": seed, "lines": len(pairs), **told}), flush=True)
    for name, found in scores.items():
        if len(found) > 1:
            error = statistics.stdev(found) / len(found) ** 0.5
            print(json.dumps({name: statistics.mean(found), "standard error": error, "seeds": len(found)}))


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
