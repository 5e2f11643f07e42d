"""FactCheck-Bench (Wang et al. 2024, arXiv 2311.09000): claims out of answers of ChatGPT, with evidence from the web.

Its claims (subtask 4) are read, from the release or from FIRE's copy. Claims of too little evidence have no label among
true and false and are skipped (661 to 631; FIRE's copy has none). Beside them, its evidence (subtask 3) makes a
corpus: the texts alone, each once; gold is what does not merely miss the point of its claim.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from ratchet.core.errors import UserError
from ratchet.core.records import Document
from ratchet.questions.benchmark import Benchmark, FieldCompleter, PlacedRow, first_file
from ratchet.questions.evidence import document_by_content
from ratchet.questions.formats import Format, Row, texts
from ratchet.questions.labels import TRUE_FALSE, claim_fields
from ratchet.questions.load import read_rows

EVIDENCE = (
    "subtask3_claim_evidence_stance.jsonl",
    "claim_evidence_stance.jsonl",
    "../factcheck_gpt/claim_evidence_stance.jsonl",
)
UNDECIDED = "not_enough_evidence"


def _rows(placed: Iterable[PlacedRow], split: str, folder: Path | None) -> Iterator[PlacedRow]:
    return ((place, row) for place, row in placed if row.get("label") != UNDECIDED)


def _documents(row: Row) -> Iterable[Document]:
    return [document_by_content("factcheckbench", row["evidence"])] if row["evidence"].strip() else []


def _beside(folder: Path) -> FieldCompleter:
    # Gold documents, where the evidence is there.
    gold: dict[str, list[str]] = {}
    path = first_file(folder, EVIDENCE)
    for place, row in read_rows(path) if path else ():
        if not {"claim", "evidence", "stance"} <= row.keys():
            raise UserError(f"{place}: no claim, evidence and stance; get the file again, or remove it to go without")
        if row["stance"] != "irrelevant":
            gold.setdefault(row["claim"], []).extend(document.id for document in _documents(row))
    return lambda row, fields: fields | {"gold_ids": texts(gold.get(fields["text"]))}


BENCHMARK = Benchmark(
    title="FactCheck-Bench",
    about="claims that ChatGPT's answers to 94 questions make; 631 in one split; true or false",
    licence="Apache-2.0 (Factcheck-GPT)",
    source="yuxiaw/Factcheck-GPT (subtasks), or mbzuai-nlp/fire (datasets/factcheckbench)",
    gold="with the evidence file, document ids of the corpus that `ratchet questions evidence` makes",
    splits={"test": ("subtask4_claim_factuality.jsonl", "subtasks/subtask4_claim_factuality.jsonl", "data.jsonl")},
    default_split="test",
    formats=(Format("claims", ("claim", "label"), lambda row: claim_fields(row["claim"], TRUE_FALSE, row["label"])),),
    evidence=EVIDENCE,
    beside=_beside,
    rows=_rows,
    documents=_documents,
)
