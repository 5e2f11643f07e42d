"""HoVer (Jiang et al. 2020, arXiv 2011.03088): claims that take two to four pages of Wikipedia to verify, two labels.

Its pages are HotpotQA's Wikipedia (abstracts of October 2017), which is yours to index. The test has no labels.
"""

from __future__ import annotations

from ratchet.questions.formats import Format, Row, supporting_titles
from ratchet.questions.labels import HOVER, claim_fields

TITLE = "HoVer"
ABOUT = "claims over two to four Wikipedia pages; 18,171 / 4,000; 2 labels; kind: 2 hops, 3 hops, 4 hops"
LICENCE = "CC BY-SA 4.0 (the code is MIT)"
SOURCE = "hover-nlp/hover"
GOLD = "titles of Wikipedia pages"
SPLITS = {
    split: (
        f"hover_{split}_release_v1.1.json",
        f"data/hover/hover_{split}_release_v1.1.json",
        f"{split}_release_v1.1.json",
    )
    for split in ("train", "dev")
}
DEFAULT_SPLIT = "dev"
# No HUB: on the hub it is a script


def _released(row: Row) -> Row:
    return {
        "id": row["uid"],
        **claim_fields(row["claim"], HOVER, row["label"]),
        "gold_titles": supporting_titles(row["supporting_facts"]),
        "kind": f"{row['num_hops']} hops",
    }


FORMATS = (Format("official", ("uid", "claim", "label", "supporting_facts", "num_hops"), _released),)
