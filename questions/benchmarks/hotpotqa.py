"""HotpotQA (Yang et al. 2018, arXiv 1809.09600). Distractor and fullwiki ask the same; the corpus is yours to bring."""

from __future__ import annotations

from ratchet.questions.benchmark import HubDataset
from ratchet.questions.formats import FLASHRAG, HOTPOT

TITLE = "HotpotQA"
ABOUT = "two-hop questions that people wrote, bridge and comparison; 90,447 / 7,405"
LICENCE = "CC BY-SA 4.0"
SOURCE = "FlashRAG's data sets, or hotpotqa.github.io"
GOLD = "titles of Wikipedia pages"
SPLITS = {
    "train": ("hotpot_train_v1.1.json",),
    "dev": ("hotpot_dev_distractor_v1.json", "hotpot_dev_fullwiki_v1.json"),
}
DEFAULT_SPLIT = "dev"
HUB = (
    HubDataset("RUC-NLPIR/FlashRAG_datasets", "hotpotqa", {"train": "train", "dev": "dev"}),
    HubDataset("hotpotqa/hotpot_qa", "distractor", {"train": "train", "dev": "validation"}),
)
FORMATS = (FLASHRAG, HOTPOT)
