"""FEVER (Thorne et al. 2018, arXiv 1803.05355): claims about Wikipedia's pages of June 2017, three labels.

Gold are the titles of all pages in any evidence set, out of the dump's spelling (Soul_Food_-LRB-film-RRB-). The pages'
texts are the release's wiki-pages, which are yours to index. Tests without labels cannot be scored here.
"""

from __future__ import annotations

from ratchet.questions.formats import Format, Row, texts
from ratchet.questions.labels import FEVER, claim_fields

TITLE = "FEVER"
ABOUT = "claims altered from sentences of Wikipedia; 145,449 / 19,998 (paper_dev, paper_test: halves of dev); 3 labels"
LICENCE = "CC BY-SA 3.0, Wikipedia's licence"
SOURCE = "fever.ai/dataset/fever.html"
GOLD = "titles of Wikipedia pages"
SPLITS = {
    "train": ("train.jsonl",),
    "dev": ("shared_task_dev.jsonl", "dev.jsonl"),
    "paper_dev": ("paper_dev.jsonl",),
    "paper_test": ("paper_test.jsonl",),
}
DEFAULT_SPLIT = "paper_dev"
# No HUB: on the hub it is a script, and a row for each piece of evidence
BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-COLON-": ":"}


def page_title(name: str) -> str:
    """A page's title out of its name in FEVER's dump."""
    for written, meant in BRACKETS.items():
        name = name.replace(written, meant)
    return name.replace("_", " ")


def _released(row: Row) -> Row:
    pages = [piece[2] for evidence in row["evidence"] for piece in evidence if piece[2] is not None]
    return {
        "id": str(row["id"]),
        **claim_fields(row["claim"], FEVER, row["label"]),
        "gold_titles": texts([page_title(page) for page in pages]),
    }


FORMATS = (Format("official", ("id", "claim", "label", "evidence"), _released),)
