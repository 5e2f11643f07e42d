"""BingCheck (Li et al. 2024, arXiv 2305.14623) as FIRE has it (Xie et al. 2025): the claims that are true or false.

The release is a folder of one answer a file, whose claims may also be supported in part or not at all; FIRE, and
MERMAID after it, score the claims that are plainly right or wrong, and their file is what is read here.
"""

from __future__ import annotations

from ratchet.questions.formats import Format
from ratchet.questions.labels import TRUE_FALSE, claim_fields

TITLE = "BingCheck"
ABOUT = "claims that answers of Bing Chat make; 142 in one split; true or false"
LICENCE = "not stated"
SOURCE = "mbzuai-nlp/fire (datasets/bingcheck)"
GOLD = "none"
SPLITS = {"test": ("data.jsonl",)}
DEFAULT_SPLIT = "test"
FORMATS = (Format("claims", ("claim", "label"), lambda row: claim_fields(row["claim"], TRUE_FALSE, row["label"])),)
