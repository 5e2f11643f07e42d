"""The sections `questions` (which are trained on, chosen by and tested on) and `generation` (how `ratchet generate`
makes some from the corpus)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, field_serializer, field_validator, model_validator

from ratchet.core.config.section import PathText, PluginName, Section, is_missing, missing_section, or_missing
from ratchet.core.errors import did_you_mean

HUB = "hub"
"""As a split's path: the `datasets` library fetches it."""
Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = ("train", "dev", "test")


class SplitConfig(Section):
    """The questions of a file, or of a benchmark."""

    path: PathText = ""
    """File of questions. With `benchmark`: its file or folder (default: `data/<benchmark>`), or `hub` or
    [`hub:NAME`](benchmarks.md) to fetch it from the Hugging Face hub."""
    benchmark: PluginName = ""
    """Name of a [benchmark](benchmarks.md), which knows the formats of its files."""
    split: str = ""
    """The benchmark's own name of a split. Default: the one that is usually scored."""
    format: Literal["ratchet", "flashrag", "datamorgana"] = "ratchet"
    """Format of a file that belongs to no benchmark."""
    separator: str | None = Field(None, min_length=1)
    """What separates several answers, or gold documents, in one text, such as `;` or `"|"`; `none` where nothing does.
    Default: short answers with a semicolon or a bar are refused."""
    rows: tuple[int, int] | None = None
    """`[first, end]`: only the rows from `first` to `end - 1` of the file, counted from 0."""
    share: tuple[float, float] | None = None
    """`[from, to]`, each between 0 and 1: only this part of the questions in a random order."""
    sample: int | None = Field(None, gt=0)
    """Number of questions in a fixed random sample. Default: all."""
    order: Literal["file", "shuffled", "clustered"] = "file"
    """Order of the questions, which matters for systems with a memory. `clustered` puts questions that share a name one
    after the other."""

    @model_validator(mode="after")
    def _check(self) -> SplitConfig:
        if not self.benchmark:
            if not self.path or self.on_hub:
                raise ValueError("path is missing: a file of questions (or name a benchmark)")
            if self.split:
                raise ValueError("split names a part of a benchmark: name the benchmark as well, or leave it out")
        elif self.format != "ratchet":
            raise ValueError("format is for files without a benchmark; a benchmark's rows tell theirs: leave it out")
        elif self.separator is not None:
            raise ValueError("separator is for files without a benchmark: leave it out")
        if self.rows and not 0 <= self.rows[0] < self.rows[1]:
            raise ValueError("rows are [first, last + 1], counted from 0")
        if self.share and not 0 <= self.share[0] < self.share[1] <= 1:
            raise ValueError("share is [from, to] with 0 <= from < to <= 1")
        return self

    @property
    def on_hub(self) -> bool:
        return self.path == HUB or self.path.startswith(f"{HUB}:")


class LeakageConfig(Section):
    """The treatment of questions or documents that training and evaluation share."""

    questions: Literal["stop", "warn", "off"] = "stop"
    """The same question (its words in the same order) is in both."""
    documents: Literal["stop", "warn", "off"] = "warn"
    """Questions of both have the same gold document."""
    corpus: Literal["stop", "warn", "off"] = "off"
    """The index holds gold documents of evaluated questions, where these must not be found, as in PubMedQA."""


NO_SPLITS = {name: missing_section(SplitConfig, f"questions.{name}") for name in SPLITS}


class QuestionsConfig(Section):
    """The questions of the experiment: three splits, or [one file that is divided](../guides/own-data.md#questions),
    for which any other key of a split, such as `format`, holds too."""

    train: Annotated[SplitConfig, or_missing(NO_SPLITS["train"])] = NO_SPLITS["train"]
    """Questions to sample trajectories on and to train on."""
    dev: Annotated[SplitConfig, or_missing(NO_SPLITS["dev"])] = NO_SPLITS["dev"]
    """Questions to choose adapters and checkpoints by."""
    test: Annotated[SplitConfig, or_missing(NO_SPLITS["test"])] = NO_SPLITS["test"]
    """Questions for the final measurement."""
    leakage: LeakageConfig = LeakageConfig()
    """The treatment of questions or documents that training and evaluation share."""

    @model_validator(mode="before")
    @classmethod
    def _divide_one_file(cls, data: Any) -> Any:
        """`path` and `split: [0.7, 0.1, 0.2]` in place of train, dev and test: shares of one file, or of one benchmark.

        Any other key of a split, such as `format` or `rows`, then holds for all three.
        """
        if not isinstance(data, dict):
            return data
        if "split" not in data:
            common = {key: data[key] for key in ("separator",) if key in data}
            own = {
                n: {**common, **data[n]} for n in SPLITS if isinstance(data.get(n), dict) and "benchmark" not in data[n]
            }
            return {key: value for key, value in data.items() if key not in common} | own
        given = [name for name in SPLITS if name in data]
        if given:
            raise ValueError(f"split divides one file; leave out {' and '.join(given)}, or split")
        shares = data["split"]
        if (
            not isinstance(shares, list | tuple)
            or len(shares) != 3
            or not all(isinstance(share, int | float) and 0 < share < 1 for share in shares)
            or abs(sum(shares) - 1) > 1e-6
        ):
            raise ValueError(
                f"split: expected the shares of train, dev and test, such as [0.7, 0.1, 0.2], got {shares!r}"
            )
        common = {key: value for key, value in data.items() if key not in ("split", "leakage")}
        bounds = [0.0, round(shares[0], 9), round(shares[0] + shares[1], 9), 1.0]
        return {"leakage": data.get("leakage", {})} | {
            name: {**common, "share": [bounds[i], bounds[i + 1]]} for i, name in enumerate(SPLITS)
        }

    @field_serializer(*SPLITS, mode="wrap")
    def _missing_is_null(self, section: Section, serialize: SerializerFunctionWrapHandler) -> Any:
        return None if is_missing(section) else serialize(section)

    @model_validator(mode="after")
    def _has_questions(self) -> QuestionsConfig:
        if all(is_missing(getattr(self, name)) for name in SPLITS):
            raise ValueError("name train, dev and test, or path and split: [0.7, 0.1, 0.2]")
        return self


LANGUAGES = ("de", "en", "es", "fr", "it", "nl", "pt")
"""Those that the writer is asked for by name (question_generation/prompts.py); a test keeps the two equal."""


class GenerationConfig(Section):
    """The questions that `ratchet generate` makes from `index.documents`."""

    out: PathText
    """Folder for `train.jsonl`, `dev.jsonl`, `test.jsonl` and every candidate."""
    model: str = "agent"
    """Name of the model that writes and checks questions and answers."""
    questions: dict[Split, Annotated[int, Field(ge=0)]] = Field(default={"train": 3500, "dev": 0, "test": 1000})
    """Number of questions of each split. Documents are divided in the same proportion. Where
    some are given, a split that is left out has none."""
    attempts: int = Field(4, gt=0)
    """Maximum number of candidates for one question, each from other documents."""
    max_tokens: int = Field(1024, gt=0)
    """Maximum number of new tokens of one reply."""
    document_words: tuple[int, int] = (50, 3000)
    """Minimum and maximum number of words of a document. Others are skipped and counted."""
    language: str = "en"
    """Language that the writer is asked for: de, en, es, fr, it, nl or pt. Empty: that of the documents."""
    categories: PathText = ""
    """YAML file with other categories or probabilities than `question_generation/categories.yaml`."""

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
        return self.questions.get(split, 0)
