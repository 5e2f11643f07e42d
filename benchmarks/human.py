"""How the built-in reward `reference_similarity` was chosen: candidates on one half of the human preferences, tested on
the other.

    python benchmarks/human.py FILE                the half of the pairs that candidates were chosen on
    python benchmarks/human.py FILE --held-out     the chosen reward and token F1 on the other half, and on all pairs

FILE is RAGChecker's human_labeled_data.json (Ru et al. 2024, arXiv 2408.08067). The halves have different questions,
drawn with a fixed seed within each data set. Candidates have no fitted weights: a combination is the plain mean of its
parts. Other candidates that were looked at on the first half and were no better are named in docs/results.md.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from commands.arguments import run_command
from evaluation.measures.human import HumanAgreement, Pair, human_agreement, people_agreement, read_pairs
from evaluation.tables.human import agreement_table
from ratchet.config import DEFAULT_EMBEDDER
from ratchet.tables import print_table
from ratchet.text import normalise_answer
from retrieval.encoders.dense import Embed
from retrieval.encoders.embedder import open_embedder
from rewards.builtin.reference_similarity import (
    NO_CONTENT,
    added_word_f1,
    contradicts,
    meaning_recall,
    sentences,
    similarity,
    stems,
)
from rewards.rules import token_f1, token_precision, token_recall

SEED = 0
RESAMPLES = 10_000
CHOSEN = "reference_similarity"
Candidate = Callable[[str, str, str], float]
"""(question, answer, reference) -> score."""


def halves(pairs: Sequence[Pair]) -> tuple[list[Pair], list[Pair]]:
    """(To choose on, held out): half of each data set's questions, and the others, each in the pairs' order."""
    by_set: dict[str, dict[str, None]] = {}
    for pair in pairs:
        by_set.setdefault(pair.question.kind, {})[pair.question.text] = None
    drawn = random.Random(SEED)
    chosen: set[str] = set()
    for name in sorted(by_set):
        texts = list(by_set[name])
        drawn.shuffle(texts)
        chosen |= set(texts[: len(texts) // 2])
    first = [pair for pair in pairs if pair.question.text in chosen]
    return first, [pair for pair in pairs if pair.question.text not in chosen]


def overlap_f1(found: Sequence[Hashable], expected: Sequence[Hashable]) -> float:
    """F1 of two lists, counted with repetition."""
    common = (Counter(found) & Counter(expected)).total()
    return 2 * common / (len(found) + len(expected)) if common else 0.0


def rouge_l(answer: str, reference: str) -> float:
    """F1 of the longest common subsequence of words (Lin 2004, ROUGE)."""
    found, expected = normalise_answer(answer).split(), normalise_answer(reference).split()
    lengths = [0] * (len(expected) + 1)
    for word in found:
        before = 0
        for at, other in enumerate(expected, 1):
            kept = lengths[at]
            lengths[at] = before + 1 if word == other else max(lengths[at], lengths[at - 1])
            before = kept
    return 2 * lengths[-1] / (len(found) + len(expected)) if found and expected else 0.0


def chrf(answer: str, reference: str) -> float:
    """chrF with beta 2: character n-grams up to 6 (Popovic 2015, WMT)."""
    found, expected = (re.sub(r"\s", "", normalise_answer(text)) for text in (answer, reference))
    precisions, recalls = [], []
    for n in range(1, 7):
        grams = [Counter(text[at : at + n] for at in range(len(text) - n + 1)) for text in (found, expected)]
        if all(grams):
            common = (grams[0] & grams[1]).total()
            precisions.append(common / grams[0].total())
            recalls.append(common / grams[1].total())
    precision, recall = fmean(precisions or [0.0]), fmean(recalls or [0.0])
    return 5 * precision * recall / (4 * precision + recall) if precision + recall else 0.0


def pairs_of(words: Sequence[str]) -> list[tuple[str, str]]:
    """Neighbouring words."""
    return list(pairwise(words))


def candidates(embed: Embed) -> Mapping[str, Candidate]:
    def cosine(first: str, second: str) -> float:
        return float(np.dot(*embed([first, second])))

    def sentence_recall(answer: str, reference: str) -> float:
        found, expected = sentences(answer), sentences(reference)
        return float((embed(expected) @ embed(found).T).max(axis=1).mean()) if found and expected else 0.0

    single: dict[str, Candidate] = {
        "f1": lambda q, a, r: token_f1(a, [r]),
        "token precision": lambda q, a, r: token_precision(a, [r]),
        "token recall": lambda q, a, r: token_recall(a, [r]),
        "F1 of stems": lambda q, a, r: overlap_f1(stems(a), stems(r)),
        "F1 of content stems": lambda q, a, r: overlap_f1(stems(a, NO_CONTENT), stems(r, NO_CONTENT)),
        "F1 of added stems": added_word_f1,
        "F1 of word pairs": lambda q, a, r: overlap_f1(pairs_of(stems(a)), pairs_of(stems(r))),
        "ROUGE-L": lambda q, a, r: rouge_l(a, r),
        "chrF": lambda q, a, r: chrf(a, r),
        "cosine to the reference": lambda q, a, r: cosine(a, r),
        "sentence recall": lambda q, a, r: sentence_recall(a, r),
        "sentence recall, added": lambda q, a, r: meaning_recall(q, a, r, embed),
    }

    def mean(*names: str) -> Candidate:
        return lambda q, a, r: 0.0 if contradicts(a, r) else fmean(single[name](q, a, r) for name in names)

    return {
        **single,
        "f1, yes/no": mean("f1"),
        "added stems, yes/no": mean("F1 of added stems"),
        "f1 + added stems": mean("f1", "F1 of added stems"),
        "added stems + recall": mean("F1 of added stems", "sentence recall, added"),
        "f1 + recall": mean("f1", "sentence recall, added"),
        "f1 + added + ROUGE-L + recall": mean("f1", "F1 of added stems", "ROUGE-L", "sentence recall, added"),
        CHOSEN: lambda q, a, r: similarity(q, a, r, embed),
    }


def differences(pairs: Sequence[Pair], candidate: Candidate) -> list[float]:
    found = []
    for pair in pairs:
        first, second = (
            candidate(pair.question.text, answer.answer, pair.question.reference or "")
            if answer.answer.strip()
            else 0.0
            for answer in pair.answers
        )
        found.append(second - first)
    return found


def measured(pairs: Sequence[Pair], tried: Mapping[str, Candidate]) -> dict[str, HumanAgreement]:
    base = differences(pairs, tried["f1"])
    return {
        name: human_agreement(pairs, differences(pairs, candidate), RESAMPLES, SEED, None if name == "f1" else base)
        for name, candidate in tried.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, metavar="FILE", help="RAGChecker's human_labeled_data.json")
    parser.add_argument("--held-out", action="store_true", help="test the chosen reward on the other half")
    arguments = parser.parse_args()
    pairs = read_pairs(arguments.file)
    embed = cached(open_embedder(DEFAULT_EMBEDDER))
    tried = candidates(embed)
    chosen_on, held_out = halves(pairs)
    if arguments.held_out:
        tried = {name: tried[name] for name in ("f1", CHOSEN)}
        parts = {"held out": held_out, "all pairs": pairs}
    else:
        parts = {"to choose on": chosen_on}
    for title, part in parts.items():
        print(f"\n{title}:")
        print_table(agreement_table(part, measured(part, tried), people_agreement(part, RESAMPLES, SEED), "f1"))


def cached(embed: Embed) -> Embed:
    """Each text is encoded once."""
    one = cache(lambda text: embed([text])[0])
    return lambda texts: np.stack([one(text) for text in texts])


if __name__ == "__main__":
    run_command(main)
