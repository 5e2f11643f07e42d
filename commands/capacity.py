"""`python -m index_build capacity`: what a large corpus will take, from building and searching a sample of it."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Sequence

from commands.arguments import config_of, config_parser, positive_integer, positive_number
from index_build.capacity import QUERIES, SampleMeasurement, extrapolate, measure_sample, report, take_sample
from index_build.documents import Document
from questions.load import load_questions, sample_questions
from ratchet.config import Config
from ratchet.errors import UserError
from retrieval.sparse.engine import usable_cores


def main(arguments: Sequence[str], prog: str = "python -m index_build capacity") -> None:
    """Run `capacity`: measure a sample and print the estimate for the complete corpus."""
    cores = usable_cores()
    parser = config_parser(prog, "Estimate what a large corpus will take, from building and searching a sample of it.")
    add = parser.add_argument
    add("--documents", type=positive_integer, required=True, help="documents of the corpus, such as 14_000_000")
    add("--sample", type=positive_integer, default=4000, help="documents of the config that are built (default: 4000)")
    add("--memory-gb", type=positive_number, default=64.0, help="memory of the machine that serves (default: 64)")
    add("--hours", type=positive_number, default=24.0, help="time that building may take (default: 24)")
    add("--workers", type=positive_integer, default=cores, help=f"processes of each job (default: {cores}, as here)")
    given = parser.parse_args(arguments)
    config = config_of(given)
    index = config.index
    if index.url is not None or index.kind not in ("bm25", "sparse") or index.engine != "ratchet":
        raise UserError("index: capacity measures kind: bm25 or sparse on engine: ratchet; give one of these")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one process is meant to be one core
    small, sample = measure(config, given.sample)
    process = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    estimate = extrapolate(small, sample, given.documents, index.shard_documents)
    print(f"Capacity for {given.documents:,} documents with {given.config}")
    print(report(index, sample, estimate, given.workers, given.hours, given.memory_gb * 1e9, process))


def measure(config: Config, count: int) -> tuple[SampleMeasurement, SampleMeasurement]:
    """(a quarter, all) of `count` documents of a config's sources, searched with its training questions."""
    documents = take_sample(config.index.documents, count)
    return measure_sample(config, documents, _queries(config, documents))


def _queries(config: Config, documents: Sequence[Document]) -> list[str]:
    try:
        questions = load_questions(config.questions.train, config.seed)
    except UserError as error:
        print(f"{error}\nSearching with the first words of documents, as there are no questions.", file=sys.stderr)
        return [" ".join((one.text or one.title).split()[:12]) for one in documents[:QUERIES]]
    return [question.text for question in sample_questions(questions, QUERIES, config.seed)]
