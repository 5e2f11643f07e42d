"""AVeriTeC (Schlichtkrull et al. 2023, arXiv 2305.13117): claims from the web, with question-answer evidence.

The corpus is made of the annotators' questions and answers alone: one document a question, which is its title. Answers
that say that there is none hold no evidence and are skipped, as are those that hold the whole justification; of a yes
or no, the explanation is part. Justifications, fact-checking articles and addresses are in no document. The kind is the
claim's type, or "several types".
"""

from __future__ import annotations

from collections.abc import Iterable

from ratchet.core.records import Document
from ratchet.questions.benchmark import Benchmark
from ratchet.questions.evidence import document_by_content
from ratchet.questions.formats import Format, Row, texts
from ratchet.questions.labels import AVERITEC, claim_fields


def _released(row: Row) -> Row:
    types = row.get("claim_types") or []
    return {
        **({"id": str(row["claim_id"])} if "claim_id" in row else {}),
        **claim_fields(row["claim"], AVERITEC, row["label"]),
        "gold_ids": texts([document.id for document in _documents(row)]),
        "kind": types[0] if len(types) == 1 else "several types" if types else "",
    }


def _documents(row: Row) -> Iterable[Document]:
    verdict = (row.get("justification") or "").strip()
    for question in row["questions"]:
        answers = [
            " ".join(texts(answer["answer"], answer.get("boolean_explanation")))
            for answer in question["answers"]
            if answer.get("answer_type") != "Unanswerable"
        ]
        if text := "\n".join(texts([answer for answer in answers if not verdict or verdict not in answer])):
            yield document_by_content("averitec", text, question["question"])


BENCHMARK = Benchmark(
    title="AVeriTeC",
    about="claims that fact checkers looked into, 2013 to 2021; 3,068 / 500; 4 labels; kind: type of the claim",
    licence="CC BY-NC 4.0",
    source="MichSchli/AVeriTeC (data), or fever.ai/dataset/averitec.html",
    gold="document ids of the corpus that `ratchet questions evidence` makes",
    splits={
        "train": ("train.json", "data/train.json"),
        "dev": ("dev.json", "data/dev.json"),
        "test": ("test.json", "data/test.json"),  # its labels are kept secret
    },
    default_split="dev",
    formats=(Format("official", ("claim", "label", "questions"), _released),),
    documents=_documents,
)
