"""Rows as the releases of verification and medical benchmarks have them, with claims of our own."""

import gzip
import json
from pathlib import Path
from typing import Any

CLAIM = "Velmora is an island."
FEVER_NAMES = ("SUPPORTS", "REFUTES", "NOT ENOUGH INFO")
PAGES = [[[1, 2, "Velmora_-LRB-isle-RRB-", 0], [1, 3, "Ada-COLON-_a_life", 4]], [[1, 4, "Velmora_-LRB-isle-RRB-", 2]]]
FEVER = {"id": 7, "verifiable": "VERIFIABLE", "label": "SUPPORTS", "claim": CLAIM, "evidence": PAGES}
NOTHING = {**FEVER, "id": 8, "label": "NOT ENOUGH INFO", "evidence": [[[1, None, None, None]]]}
CELLS = ["Velmora_sentence_0", "Ada_Pell_header_cell_0_1_2", "Isles_table_caption_3", "Velmora_item_0_12", "Ada_title"]
FEVEROUS = {
    "id": 5,
    "claim": CLAIM,
    "label": "REFUTES",
    "evidence": [{"content": CELLS, "context": {"Velmora_sentence_0": ["Velmora_title"]}}],
    "challenge": "Multi-hop Reasoning",
}
LINES = "Velmora\tAn [[Isle|island]] of salt.\nAda Pell\tShe rules, IPA: [[English|[ada]]]."
AVERITEC = {
    "claim": CLAIM,
    "label": "Conflicting Evidence/Cherrypicking",
    "justification": "Two maps disagree.",
    "claim_types": ["Numerical Claim"],
    "questions": [{"question": "Is it?", "answers": [{"answer": "A map says so.", "answer_type": "Extractive"}]}],
}
PASSAGE = {"id": "99", "title": "Velmora", "text": "Velmora lies in the sea."}
FAVIQ = {"id": "a-1", "claim": CLAIM, "label": "REFUTES", "positive_evidence": PASSAGE}
OPTIONS = {"A": "Salt", "B": "Rest", "C": "Water", "D": "Air"}
MEDQA = {"question": CLAIM, "answer": "Rest", "options": OPTIONS, "meta_info": "step1", "answer_idx": "B"}
COLLECTED = {"id": 3, "question": CLAIM, "choices": OPTIONS, "answer": "D"}
SCIFACT = {"id": 1, "claim": CLAIM, "cited_doc_ids": [31, 32, 33]}
HOVER = {"uid": "u", "claim": CLAIM, "supporting_facts": [["Velmora", 2], ["Ada", 0]], "label": "NOT_SUPPORTED"}


def write(path: Path, rows: list[Any]) -> None:
    """JSONL, or one JSON value of a file that is called .json."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(rows) if ".json" in path.suffixes else "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
