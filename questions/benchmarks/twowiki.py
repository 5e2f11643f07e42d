"""2WikiMultiHopQA (Ho et al. 2020, arXiv 2011.01060), with the answers' aliases where id_aliases.json lies beside."""

from __future__ import annotations

from pathlib import Path

from ratchet.core.errors import UserError
from ratchet.questions.benchmark import FieldCompleter, HubDataset
from ratchet.questions.formats import FLASHRAG, HOTPOT, Row, texts
from ratchet.questions.load import read_rows

TITLE = "2WikiMultiHopQA"
ABOUT = "two-hop and comparison questions from templates over Wikidata; 167,454 / 12,576 (FlashRAG: 15,000 / 12,576)"
LICENCE = "Apache-2.0 (the repository)"
SOURCE = "FlashRAG's data sets, or Alab-NII/2wikimultihop (data_ids, with aliases)"
GOLD = "titles of Wikipedia pages"
SPLITS = {
    "train": ("train.json", "2wikimultihopqa/train.jsonl"),
    "dev": ("dev.json", "2wikimultihopqa/dev.jsonl"),
}
DEFAULT_SPLIT = "dev"
HUB = (HubDataset("RUC-NLPIR/FlashRAG_datasets", "2wikimultihopqa", {"train": "train", "dev": "dev"}),)
FORMATS = (FLASHRAG, HOTPOT)


def beside(folder: Path) -> FieldCompleter:
    """The function that adds the answers' aliases, where id_aliases.json lies beside the questions."""
    path = folder / "id_aliases.json"
    aliases: dict[str, Row] = {}
    for place, row in read_rows(path) if path.is_file() else ():
        if "Q_id" not in row or "aliases" not in row:
            raise UserError(f"{place}: no Q_id and aliases; get the file again, or remove it to go without aliases")
        aliases[row["Q_id"]] = row

    def complete(row: Row, fields: Row) -> Row:
        known = aliases.get(row.get("answer_id") or "", {})
        return fields | {"answers": texts(fields["answers"], known.get("aliases"))} if known else fields

    return complete
