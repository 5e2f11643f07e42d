"""StrategyQA (Geva et al. 2021, arXiv 2101.02235): yes / no questions whose steps are not said in them.

The released test has no answers; `dev` is the 229 questions that the authors' code keeps apart from `train`. Scored by
exact match of yes and no. The corpus that `ratchet questions evidence` makes is the facts that its authors wrote for
each question, under its term; the paper retrieves from Wikipedia.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from ratchet.core.records import Document
from ratchet.questions.benchmark import Benchmark, HubDataset
from ratchet.questions.formats import Format, Row

PARAGRAPH = re.compile(r"-\d+$")
"""The end of a paragraph's id, behind the page's title."""


def _answer(value: Any) -> str:
    known = {"true": "yes", "yes": "yes", "false": "no", "no": "no"}.get(str(value).strip().lower())
    if known is None:
        raise ValueError(f"answer: expected true or false, got {value!r}")
    return known


def _official(row: Row) -> Row:
    annotators = row.get("evidence") or [[]]
    pages = (PARAGRAPH.sub("", paragraph) for paragraph in _paragraphs(annotators[0]))
    return {
        "id": row["qid"],
        "text": row["question"],
        "answers": (_answer(row["answer"]),),
        "gold_titles": tuple(dict.fromkeys(pages)),
    }


def _paragraphs(evidence: Any) -> Iterator[str]:
    """The ids of paragraphs in an annotator's steps, whose lists are nested and hold marks as well."""
    for one in evidence:
        if isinstance(one, list):
            yield from _paragraphs(one)
        elif isinstance(one, str) and one not in ("operation", "no_evidence"):
            yield one


def _flashrag(row: Row) -> Row:
    return {"id": str(row["id"]), "text": row["question"], "answers": (_answer(row["golden_answers"][0]),)}


def _documents(row: Row) -> Iterable[Document]:
    if row.get("facts"):
        yield Document(f"strategyqa:{row['qid']}", "\n".join(row["facts"]), row.get("term") or "")


BENCHMARK = Benchmark(
    title="StrategyQA",
    about="yes / no questions with implicit steps over Wikipedia; 2,061 / 229 (FlashRAG: 2,290 in one)",
    licence="MIT",
    source="eladsegal/strategyqa (data/strategyqa), or FlashRAG's data sets",
    gold="titles of the Wikipedia pages of one annotator",
    splits={
        "train": ("strategyqa_train.json", "data/strategyqa/train.json", "strategyqa/train.json", "train.json"),
        "dev": ("strategyqa_dev.json", "data/strategyqa/dev.json", "strategyqa/dev.json", "dev.json"),
    },
    default_split="dev",
    hub=(HubDataset("RUC-NLPIR/FlashRAG_datasets", "strategyqa", {"train": "train"}),),
    formats=(
        Format("official", ("qid", "question", "answer"), _official),
        Format("flashrag", ("id", "question", "golden_answers"), _flashrag),
    ),
    documents=_documents,
)
