"""TriviaQA, open domain (Joshi et al. 2017, arXiv 1705.03551)."""

from __future__ import annotations

from ratchet.questions.benchmark import HubDataset
from ratchet.questions.formats import FLASHRAG, Format, Row, texts

TITLE = "TriviaQA"
ABOUT = "trivia questions with many accepted answers; 78,785 / 8,837 / 11,313"
LICENCE = "not stated for the questions; the code is Apache-2.0"
SOURCE = "FlashRAG's data sets, or nlp.cs.washington.edu/triviaqa (unfiltered)"
GOLD = "none"
SPLITS = {
    "train": ("triviaqa-unfiltered/unfiltered-web-train.json", "unfiltered-web-train.json"),  # holds FlashRAG's dev
    "dev": (),
    "test": ("triviaqa-unfiltered/unfiltered-web-dev.json", "unfiltered-web-dev.json"),  # its own test is secret
}
DEFAULT_SPLIT = "test"
HUB = (
    HubDataset("RUC-NLPIR/FlashRAG_datasets", "triviaqa", {"train": "train", "dev": "dev", "test": "test"}),
    HubDataset("mandarjoshi/trivia_qa", "unfiltered.nocontext", {"train": "train", "test": "validation"}),
)


def _released(row: Row) -> Row:
    """The normalised aliases count as well, as in the official scorer."""
    answer = row["Answer"]
    answers = texts(answer["Value"], answer.get("Aliases"), answer.get("HumanAnswers"), answer.get("NormalizedAliases"))
    return {"id": row["QuestionId"], "text": row["Question"], "answers": answers}


def _hub(row: Row) -> Row:
    answer = row["answer"]
    answers = texts(answer["value"], answer.get("aliases"), answer.get("normalized_aliases"))
    return {"id": row["question_id"], "text": row["question"], "answers": answers}


FORMATS = (
    FLASHRAG,
    Format("official", ("Question", "QuestionId", "Answer"), _released),
    Format("hub", ("question", "question_id", "answer"), _hub),
)
