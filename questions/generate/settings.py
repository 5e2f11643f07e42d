"""The settings of question generation: the section `generation` of a config."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from questions.generate.language import STOP_WORDS
from ratchet.config import Config, Section, parse
from ratchet.errors import UserError, did_you_mean

Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = ("train", "dev", "test")


class Counts(Section):
    """Questions wanted of each split; documents are divided between the splits in the same proportion."""

    train: int = Field(3500, ge=0)
    dev: int = Field(0, ge=0)
    test: int = Field(1000, ge=0)


class Settings(Section):
    out: str
    """The folder of train.jsonl, dev.jsonl, test.jsonl, and of everything that led to them."""
    model: str = "agent"
    """The name under `models` that writes questions and answers."""
    judge: str = ""
    """The name under `models` that checks them; default: the writer."""
    questions: Counts = Counts()
    attempts: int = Field(4, gt=0)
    """Candidates tried for one question, each from other documents, before it counts as missing."""
    temperature: float = Field(0.7, ge=0)
    judge_temperature: float = Field(0.0, ge=0)
    top_p: float = Field(0.95, gt=0, le=1)
    max_tokens: int = Field(1024, gt=0)
    """New tokens of one reply."""
    concurrency: int = Field(64, gt=0)
    """Candidates in the making at once."""
    documents: int = Field(10_000, gt=0)
    """Documents that one split draws on at most: a random sample of its share of the corpus, held in memory."""
    document_words: tuple[int, int] = (50, 3000)
    """Shorter and longer documents are passed over, and counted. Nothing is cut: a document is shown whole."""
    question_words: tuple[int, int] = (1, 80)
    """Fewest and most words of a question; its category may be stricter."""
    answer_words: tuple[int, int] = (1, 250)
    copied_words: int = Field(12, gt=1)
    """A question that shares a run of so many words with a document is copied, not written."""
    near: float = Field(0.7, gt=0, le=1)
    """Share of three-word runs from which on a question copies an accepted one (Jaccard, as for leakage)."""
    needs_both: bool = False
    """A question of two documents is dropped where the judge finds one of them enough: two more calls."""
    language: str = "en"
    """Language of questions and answers (language.py); empty: not checked beyond the documents' script."""
    categories: str = ""
    """A file like questions/generate/categories.yaml, with other categories or probabilities; default: that one."""

    @model_validator(mode="after")
    def _fits(self) -> Settings:
        for name in ("document_words", "question_words", "answer_words"):
            low, high = getattr(self, name)
            if not 1 <= low <= high:
                raise ValueError(f"{name}: [{low}, {high}] is no range of at least one word")
        if self.language and self.language not in STOP_WORDS:
            raise ValueError(
                f"language: no check for {self.language!r}{did_you_mean(self.language, STOP_WORDS)}; "
                "'' checks the script alone"
            )
        if not any(self.wanted(split) for split in SPLITS):
            raise ValueError("questions: every split wants 0 questions")
        return self

    def wanted(self, split: Split) -> int:
        return int(getattr(self.questions, split))

    @property
    def judged_by(self) -> str:
        return self.judge or self.model


def settings_of(config: Config, where: str) -> Settings:
    """The checked section `generation`."""
    if not config.generation:
        raise UserError(f"{where}: no section `generation`; at least: generation: {{out: data/made}}")
    settings = parse(Settings, config.generation, f"{where}: generation")
    for key, name in (("model", settings.model), ("judge", settings.judged_by)):
        if name not in config.models:
            raise UserError(
                f"{where}: generation.{key} names the model {name!r}, which is not under models"
                f"{did_you_mean(name, config.models)}"
            )
    if not config.index.documents:
        raise UserError(f"{where}: index.documents is empty; name the documents that questions are made from")
    return settings
