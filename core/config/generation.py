"""The section `generation`: how `ratchet generate` makes questions from the corpus."""

from __future__ import annotations

from pydantic import Field, field_validator, model_validator

from ratchet.core.config.paths import PathText
from ratchet.core.config.questions import SPLITS, Split
from ratchet.core.config.section import Section
from ratchet.core.errors import did_you_mean

LANGUAGES = ("de", "en", "es", "fr", "it", "nl", "pt")
"""Those that the writer is asked for by name (question_generation/prompts.py); a test keeps the two equal."""


class Counts(Section):
    """Number of questions of each split. Documents are divided between the splits in the same proportion."""

    train: int = Field(3500, ge=0)
    """Number of training questions."""
    dev: int = Field(0, ge=0)
    """Number of dev questions."""
    test: int = Field(1000, ge=0)
    """Number of test questions."""


class GenerationConfig(Section):
    """How `ratchet generate` makes questions from the documents of `index.documents`."""

    out: PathText
    """Folder that gets `train.jsonl`, `dev.jsonl` and `test.jsonl`, and every candidate with the reason for its
    result."""
    model: str = "agent"
    """Name of the model under `models` that writes questions and answers, and checks them."""
    questions: Counts = Counts()
    """Number of questions of each split."""
    attempts: int = Field(4, gt=0)
    """Maximum number of candidates for one question, each from other documents, before it counts as missing."""
    max_tokens: int = Field(1024, gt=0)
    """Maximum number of new tokens of one reply."""
    document_words: tuple[int, int] = (50, 3000)
    """Minimum and maximum number of words of a document. Others are skipped and counted. A document is never
    truncated."""
    language: str = "en"
    """Language of questions and answers that the writer is asked for: de, en, es, fr, it, nl or pt. Empty: that of the
    documents. Their script is checked, their language is not."""
    categories: PathText = ""
    """YAML file like `question_generation/categories.yaml`, with other categories or probabilities. Default: that
    file."""

    @field_validator("document_words")
    @classmethod
    def _check_range(cls, words: tuple[int, int]) -> tuple[int, int]:
        low, high = words
        if not 1 <= low <= high:
            raise ValueError(f"[{low}, {high}] is no range of at least one word")
        return words

    @field_validator("language")
    @classmethod
    def _check_language(cls, language: str) -> str:
        if language and language not in LANGUAGES:
            raise ValueError(
                f"no language {language!r}{did_you_mean(language, LANGUAGES)}; '' asks for that of the documents"
            )
        return language

    @model_validator(mode="after")
    def _check(self) -> GenerationConfig:
        if not any(self.wanted(split) for split in SPLITS):
            raise ValueError("questions: every split wants 0 questions")
        return self

    def wanted(self, split: Split) -> int:
        return int(getattr(self.questions, split))
