"""The categories of questions and answers, read from a YAML file, and how one question's are drawn."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from ratchet.core.config import Section, parse
from ratchet.core.errors import did_you_mean
from ratchet.core.parsing import read_mapping

DEFAULT_CATEGORIES = Path(__file__).with_name("categories.yaml")
STEERING = {"document_granularity": ("single-doc", "multi-doc"), "interaction_type": ("single-turn", "two-turn")}
"""Categories that the code itself acts on: a file may leave them out, but not call them otherwise."""

Drawn = Mapping[str, str]
"""Categorisation to category, of one question."""


class Category(Section):
    """One category: how often it is drawn, what the writer is told, and what is checked."""

    probability: float = Field(gt=0, le=1)
    definition: str
    form: Literal["question", "search"] = "question"
    """What the question must look like: with a question mark, unless one of its categories is a search query."""
    words: tuple[int, int] | None = None
    """Fewest and most words of the question."""


class Categories(Section):
    """All categorisations, and the combinations of them that questions are drawn from."""

    categorisations: dict[str, dict[str, Category]]
    common: tuple[str, ...]
    combinations: tuple[tuple[str, ...], ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _fits(self) -> Categories:
        for name, categories in self.categorisations.items():
            total = sum(category.probability for category in categories.values())
            if abs(total - 1) > 1e-6:
                raise ValueError(f"categorisations.{name}: the probabilities sum to {total:g}, not to 1")
            for category in categories:
                if category not in STEERING.get(name, (category,)):
                    raise ValueError(f"categorisations.{name}: no {category!r}{did_you_mean(category, STEERING[name])}")
        for name in {*self.common, *(name for names in self.combinations for name in names)}:
            if name not in self.categorisations:
                raise ValueError(f"a combination names {name!r}{did_you_mean(name, self.categorisations)}")
        return self

    def draw(self, rng: random.Random) -> tuple[int, dict[str, str]]:
        """(combination counted from 1, its categories): a combination, all alike, then categories by probability."""
        number = rng.randrange(len(self.combinations))
        drawn = {}
        for name in (*self.common, *self.combinations[number]):
            categories = self.categorisations[name]
            weights = [category.probability for category in categories.values()]
            drawn[name] = rng.choices(list(categories), weights)[0]
        return number + 1, drawn

    def chosen(self, drawn: Drawn) -> dict[str, Category]:
        return {name: self.categorisations[name][category] for name, category in drawn.items()}


def load_categories(path: Path = DEFAULT_CATEGORIES) -> Categories:
    """Read a categories file. Raises UserError."""
    return parse(Categories, read_mapping(path), str(path))


def two_documents(drawn: Drawn) -> bool:
    """Whether the question must need two documents."""
    return drawn.get("document_granularity") == "multi-doc"


def two_turns(drawn: Drawn) -> bool:
    """Whether the question follows up on another one."""
    return drawn.get("interaction_type") == "two-turn"
