"""The verification benchmarks whose files carry no texts of evidence: FEVER, HoVer, BingCheck and FacTool-QA.

None has a data set on the hub that can be used: there FEVER and HoVer are scripts, FEVER with a row for each piece of
evidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from ratchet.questions.benchmark import Benchmark, PlacedRow
from ratchet.questions.formats import Format, Row, supporting_titles, texts
from ratchet.questions.labels import FEVER, HOVER, TRUE_FALSE, claim_fields

BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-COLON-": ":"}


def page_title(name: str) -> str:
    """A page's title out of its name in FEVER's dump (Soul_Food_-LRB-film-RRB-)."""
    for written, meant in BRACKETS.items():
        name = name.replace(written, meant)
    return name.replace("_", " ")


def _fever(row: Row) -> Row:
    """Gold are the titles of all pages in any evidence set."""
    pages = [piece[2] for evidence in row["evidence"] for piece in evidence if piece[2] is not None]
    return {
        "id": str(row["id"]),
        **claim_fields(row["claim"], FEVER, row["label"]),
        "gold_titles": texts([page_title(page) for page in pages]),
    }


def _hover(row: Row) -> Row:
    return {
        "id": row["uid"],
        **claim_fields(row["claim"], HOVER, row["label"]),
        "gold_titles": supporting_titles(row["supporting_facts"]),
        "kind": f"{row['num_hops']} hops",
    }


def _factool_rows(placed: Iterable[PlacedRow], split: str, folder: Path | None) -> Iterator[PlacedRow]:
    """One row a claim: the release has an answer with its claims a line, and FIRE (Xie et al. 2025) a claim a line."""
    for answer, (place, row) in enumerate(placed, 1):
        if "claims" not in row:
            yield place, row
            continue
        for number, claim in enumerate(row["claims"], 1):
            yield f"{place}, claim {number}", {"id": f"{answer}.{number}", **claim}


def _factool(row: Row) -> Row:
    return {**({"id": row["id"]} if "id" in row else {}), **claim_fields(row["claim"], TRUE_FALSE, row["label"])}


BENCHMARKS = {
    # Thorne et al. 2018, arXiv 1803.05355. The pages' texts are the release's wiki-pages of June 2017, which are yours
    # to index. Tests without labels cannot be scored here.
    "fever": Benchmark(
        title="FEVER",
        about="claims altered from sentences of Wikipedia; 145,449 / 19,998 (paper_dev, paper_test: halves of dev); "
        "3 labels",
        licence="CC BY-SA 3.0, Wikipedia's licence",
        source="fever.ai/dataset/fever.html",
        gold="titles of Wikipedia pages",
        splits={
            "train": ("train.jsonl",),
            "dev": ("shared_task_dev.jsonl", "dev.jsonl"),
            "paper_dev": ("paper_dev.jsonl",),
            "paper_test": ("paper_test.jsonl",),
        },
        default_split="paper_dev",
        formats=(Format("official", ("id", "claim", "label", "evidence"), _fever),),
    ),
    # Jiang et al. 2020, arXiv 2011.03088. Its pages are HotpotQA's Wikipedia (abstracts of October 2017), which is
    # yours to index. The test has no labels.
    "hover": Benchmark(
        title="HoVer",
        about="claims over two to four Wikipedia pages; 18,171 / 4,000; 2 labels; kind: 2 hops, 3 hops, 4 hops",
        licence="CC BY-SA 4.0 (the code is MIT)",
        source="hover-nlp/hover",
        gold="titles of Wikipedia pages",
        splits={
            split: (
                f"hover_{split}_release_v1.1.json",
                f"data/hover/hover_{split}_release_v1.1.json",
                f"{split}_release_v1.1.json",
            )
            for split in ("train", "dev")
        },
        default_split="dev",
        formats=(Format("official", ("uid", "claim", "label", "supporting_facts", "num_hops"), _hover),),
    ),
    # Li et al. 2024, arXiv 2305.14623. The release is a folder of one answer a file, whose claims may also be supported
    # in part or not at all; FIRE (Xie et al. 2025), and MERMAID after it, score the claims that are plainly right or
    # wrong, and their file is what is read here.
    "bingcheck": Benchmark(
        title="BingCheck",
        about="claims that answers of Bing Chat make; 142 in one split; true or false",
        licence="not stated",
        source="mbzuai-nlp/fire (datasets/bingcheck)",
        gold="none",
        splits={"test": ("data.jsonl",)},
        default_split="test",
        formats=(
            Format("claims", ("claim", "label"), lambda row: claim_fields(row["claim"], TRUE_FALSE, row["label"])),
        ),
    ),
    # Chern et al. 2023, arXiv 2307.13528
    "factool_qa": Benchmark(
        title="FacTool-QA",
        about="claims that ChatGPT's answers to 50 questions make; 233 in one split; true or false",
        licence="not stated for the data; the code is Apache-2.0",
        source="GAIR-NLP/factool (datasets/knowledge_qa), or mbzuai-nlp/fire (datasets/factool_qa)",
        gold="none",
        splits={"test": ("knowledge_qa.jsonl", "datasets/knowledge_qa/knowledge_qa.jsonl", "data.jsonl")},
        default_split="test",
        formats=(Format("claims", ("claim", "label"), _factool),),
        rows=_factool_rows,
    ),
}
