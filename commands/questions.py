"""Check a config's questions before anything is sampled, and write a corpus of benchmarks' own evidence."""

from __future__ import annotations

import argparse
from pathlib import Path

from ratchet.core.config import Config
from ratchet.core.errors import UserError
from ratchet.core.text import plain_line
from ratchet.questions.evidence import Corpus, EvidenceSource

ENDINGS = (".jsonl", ".jsonl.gz")


def evidence(options: argparse.Namespace) -> None:
    """Write a corpus of benchmarks' own evidence, and print how many documents each benchmark gave."""
    if not options.out.name.endswith(ENDINGS):
        raise UserError(f"--out {options.out}: must end in {' or '.join(ENDINGS)}, as index.documents takes it")
    corpus = Corpus()
    for name in options.names:
        source = EvidenceSource.parse(name)
        count = corpus.add(source)
        if not count:
            raise UserError(
                f"{name}: has no texts of evidence (gold: {source.benchmark.gold}); use your own corpus for "
                "it, and remove it from the command"
            )
        print(f"{name}: {count} documents")
    for name in options.without:
        print(f"{name}: {corpus.remove_gold(EvidenceSource.parse(name))} gold documents are left out")
    if not corpus.parts:
        raise UserError("--without leaves no document; nothing was written")
    corpus.write(options.out)
    print(f"{len(corpus.parts)} documents in {options.out}; in a config: index.documents: [{options.out}]")


def check(config: Config, options: argparse.Namespace) -> None:
    """Print what each split holds; UserError where questions cannot be used as the config asks."""
    from ratchet.index_build.documents import corpus_of, folder_listing  # late: they import what opens an index
    from ratchet.questions.leakage import check_leakage
    from ratchet.questions.load import LoadedSplit, load_split
    from ratchet.rewards.check import check_corpus, check_questions, describe_splits, question_flaws

    splits: dict[str, LoadedSplit] = {}
    bad: dict[str, None] = {}
    for key, split in config.splits.items():
        try:
            splits[key] = load_split(split, config.seed)
        except UserError as error:
            bad[str(error)] = None  # once, where splits are drawn from one file
    if bad:
        raise UserError("\n".join(bad))
    for line in describe_splits(splits):
        print(plain_line(line))
    mode = config.questions.leakage.corpus
    index = config.index if mode == "off" else None
    evaluated = {
        key: split.questions for key, split in splits.items() if key not in ("questions.train", "questions.dev")
    }
    warnings = check_questions(splits, config.rewards.weights, config.evaluation.scores, index)
    leaks = check_leakage(config)
    flaws = [f"{key}: {flaw}" for key, split in splits.items() for flaw in question_flaws(split)]
    for source in map(Path, config.index.documents):
        if corpus_of(source).is_dir() and (skipped := folder_listing(source).skipped_text):
            print(plain_line(f"{source}: not read: {skipped}"))
    for warning in [*flaws, *warnings, *leaks, *check_corpus(evaluated, config.index, mode)]:
        print(plain_line(warning))
