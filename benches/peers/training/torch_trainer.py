"""A translator of the same shape trained with torch by the same recipe, for comparison.

The recipe is Headrow's, where `torch.nn.Transformer` has another: dropout on what a sublayer gives and on embeddings alone (not
inside attention and the feed-forward layer), each of the maps W_Q, W_K, W_V with Xavier's bound of its own (not that of the three
stacked), and batches of so many real tokens a side.

    python torch_trainer.py --train a.tsv b.tsv --test c.tsv --tokenizer tokenizer.json --target-tokens 1000000

One JSON object per report on stdout: {"tokens": target tokens so far, "seconds": time spent on steps, "loss": …}, and at the
end {"hypotheses": FILE, "perplexity": …}: a greedy translation for each line of the test files, and how well the targets were foreseen.
"""

import argparse
import json
import math
import random
import time

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import nn

PAD, BEGIN, END = 0, 1, 2


def arguments():
    a = argparse.ArgumentParser()
    a.add_argument("--train", nargs="+", required=True)
    a.add_argument("--test", nargs="*", default=[])
    a.add_argument("--tokenizer", required=True, help="ids 0, 1, 2: padding, begin, end")
    a.add_argument("--d-model", type=int, default=192)
    a.add_argument("--d-ff", type=int, default=768)
    a.add_argument("--layers", type=int, default=3)
    a.add_argument("--heads", type=int, default=4)
    a.add_argument("--batch-tokens", type=int, default=2000, help="of each side, padding not counted")
    a.add_argument("--max-length", type=int, default=40)
    a.add_argument("--warmup", type=int, default=400)
    a.add_argument("--rate-factor", type=float, default=0.5)
    a.add_argument("--dropout", type=float, default=0.1)
    a.add_argument("--smoothing", type=float, default=0.1)
    a.add_argument("--threads", type=int, default=1)
    a.add_argument("--seed", type=int, default=0)
    a.add_argument("--target-tokens", type=int, required=True)
    a.add_argument("--report-every", type=int, default=20, help="steps")
    a.add_argument("--hypotheses", default="hypotheses.txt")
    return a.parse_args()


def pairs(files):
    for file in files:
        for line in open(file, encoding="utf-8"):
            fields = line.rstrip("\n").split("\t")
            if len(fields) == 2 and all(fields):
                yield fields


def sinusoids(rows, d):
    place = torch.arange(rows)[:, None]
    rate = torch.exp(torch.arange(0, d, 2) * (-math.log(10000.0) / d))
    table = torch.zeros(rows, d)
    table[:, 0::2] = torch.sin(place * rate)
    table[:, 1::2] = torch.cos(place * rate)
    return table


class Translator(nn.Module):
    def __init__(self, a, vocabulary):
        super().__init__()
        d = a.d_model
        self.scale = math.sqrt(d)
        self.words = nn.Embedding(vocabulary, d)
        self.stacks = nn.Transformer(
            d, a.heads, a.layers, a.layers, a.d_ff, a.dropout, batch_first=True, norm_first=True
        )
        self.dropout = nn.Dropout(a.dropout)
        self.register_buffer("places", sinusoids(1024, d))
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.xavier_uniform_(weight)
        for part in self.stacks.modules():
            if isinstance(part, nn.MultiheadAttention):
                part.dropout = 0.0
                for weight in part.in_proj_weight.chunk(3):
                    nn.init.xavier_uniform_(weight)
            if isinstance(part, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)):
                part.dropout = nn.Identity()
        nn.init.normal_(self.words.weight, 0, d**-0.5)

    def embed(self, ids):
        return self.dropout(self.words(ids) * self.scale + self.places[: ids.shape[1]])

    def encode(self, source):
        return self.stacks.encoder(self.embed(source), src_key_padding_mask=source == PAD)

    def decode(self, source, memory, target):
        t = target.shape[1]
        return self.stacks.decoder(
            self.embed(target),
            memory,
            tgt_mask=torch.triu(torch.ones(t, t, dtype=torch.bool), 1),
            tgt_is_causal=True,
            memory_key_padding_mask=source == PAD,
            tgt_key_padding_mask=target == PAD,
        )

    def read_out(self, hidden):
        return F.linear(hidden, self.words.weight)

    def forward(self, source, target):
        return self.read_out(self.decode(source, self.encode(source), target))


def padded(rows):
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


def batches(examples, budget, draw):
    """Of examples of about the same length, in a drawn order; at most `budget` real tokens a side."""
    order = list(range(len(examples)))
    draw.shuffle(order)
    order.sort(key=lambda i: len(examples[i][0]) // 4 + len(examples[i][1]) // 4)
    found, batch, sums = [], [], (0, 0)
    for i in order:
        sizes = len(examples[i][0]), len(examples[i][1]) - 1
        grown = sums[0] + sizes[0], sums[1] + sizes[1]
        if batch and max(grown) > budget:
            found.append(batch)
            batch, grown = [], sizes
        batch.append(examples[i])
        sums = grown
    found.append(batch)
    draw.shuffle(found)
    return found


@torch.no_grad()
def perplexity(model, examples):
    """Of the targets, their ends included."""
    model.eval()
    loss, tokens = 0.0, 0
    for first in range(0, len(examples), 50):
        some = examples[first : first + 50]
        source, target = padded([s for s, _ in some]), padded([t for _, t in some])
        scores, labels = model(source, target[:, :-1]), target[:, 1:]
        loss += F.cross_entropy(scores.transpose(1, 2), labels, ignore_index=PAD, reduction="sum").item()
        tokens += int((labels != PAD).sum())
    model.train()
    return math.exp(loss / tokens)


@torch.no_grad()
def greedy(model, sources, longest):
    model.eval()
    source = padded(sources)
    memory = model.encode(source)
    target = torch.full((len(sources), 1), BEGIN)
    done = torch.zeros(len(sources), dtype=torch.bool)
    for _ in range(longest):
        scores = model.read_out(model.decode(source, memory, target)[:, -1])
        word = scores.argmax(-1).masked_fill(done, PAD)
        target = torch.cat([target, word[:, None]], 1)
        done |= word == END
        if done.all():
            break
    model.train()
    rows = target[:, 1:].tolist()
    return [row[: row.index(END)] if END in row else row for row in rows]


def main():
    a = arguments()
    torch.manual_seed(a.seed)
    torch.set_num_threads(a.threads)
    draw = random.Random(a.seed)
    tokenizer = Tokenizer.from_file(a.tokenizer)
    ids = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
    examples_of = lambda files: [(ids(s) + [END], [BEGIN] + ids(t) + [END]) for s, t in pairs(files)]
    examples = [e for e in examples_of(a.train) if len(e[0]) <= a.max_length and len(e[1]) <= a.max_length + 1]
    model = Translator(a, tokenizer.get_vocab_size())
    adam = torch.optim.Adam(model.parameters(), 1.0, betas=(0.9, 0.98), eps=1e-9)
    step, tokens, seconds = 0, 0, 0.0
    while tokens < a.target_tokens:
        for batch in batches(examples, a.batch_tokens, draw):
            start = time.perf_counter()
            step += 1
            rate = a.rate_factor * a.d_model**-0.5 * min(step**-0.5, step * a.warmup**-1.5)
            adam.param_groups[0]["lr"] = rate
            source, target = padded([s for s, _ in batch]), padded([t for _, t in batch])
            scores = model(source, target[:, :-1])
            labels = target[:, 1:].reshape(-1)
            loss = F.cross_entropy(
                scores.reshape(len(labels), -1), labels, ignore_index=PAD, label_smoothing=a.smoothing
            )
            adam.zero_grad(set_to_none=True)
            loss.backward()
            adam.step()
            tokens += int((labels != PAD).sum())
            seconds += time.perf_counter() - start
            if step % a.report_every == 0 or tokens >= a.target_tokens:
                report = {"step": step, "tokens": tokens, "seconds": seconds, "loss": loss.item()}
                print(json.dumps(report), flush=True)
            if tokens >= a.target_tokens:
                break
    tests = examples_of(a.test)
    if tests:
        with open(a.hypotheses, "w", encoding="utf-8") as out:
            for first in range(0, len(tests), 50):
                for row in greedy(model, [source for source, _ in tests[first : first + 50]], 2 * a.max_length):
                    out.write(tokenizer.decode(row) + "\n")
        print(json.dumps({"hypotheses": a.hypotheses, "perplexity": perplexity(model, tests)}), flush=True)


if __name__ == "__main__":
    main()
