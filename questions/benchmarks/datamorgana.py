"""DataMorgana's questions (Filice et al. 2025, arXiv 2501.12789) and the LiveRAG benchmark made of them (2511.14531).

`train` and `dev` are your own, made by DataMorgana or by `ratchet generate`; LiveRAG's set is the test.
"""

from __future__ import annotations

import json

from ratchet.questions.benchmark import Benchmark, HubDataset
from ratchet.questions.formats import DATAMORGANA, Format, Row, json_list, texts


def _liverag(row: Row) -> Row:
    """Claims that answer the question directly are its nuggets; other claims are skipped."""
    documents = json_list(row["Supporting_Documents"])
    claims = row.get("Answer_Claims") or {}
    claims = json.loads(claims) if isinstance(claims, str) else claims
    return {
        "id": str(row["Index"]),
        "text": row["Question"],
        "reference": row["Answer"],
        "nuggets": texts(claims.get("direct")),
        "gold_ids": texts([document["doc_id"] for document in documents]),
        "kind": "single-doc" if len(documents) == 1 else "multi-doc",
    }


BENCHMARK = Benchmark(
    title="DataMorgana",
    about="long answers to generated questions of many kinds over web pages; LiveRAG's test: 895",
    licence="the pages: ODC-By; LiveRAG's test: CC BY 4.0 or ODC-By, by its version",
    source="`ratchet generate`, or LiveRAG/Benchmark on the hub (test)",
    gold="document ids",
    splits={
        "train": (),
        "dev": (),
        "test": ("LiveRAG_banchmark_20250910.parquet", "LiveRAG_banchmark_20250804.parquet"),  # so they are called
    },
    default_split="test",
    hub=(HubDataset("LiveRAG/Benchmark", None, {"test": "train"}),),
    formats=(DATAMORGANA, Format("LiveRAG", ("Index", "Question", "Answer", "Supporting_Documents"), _liverag)),
)
