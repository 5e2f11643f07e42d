"""The JSON messages between the search server and its client, and the server's limits."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from ratchet.core.errors import did_you_mean
from ratchet.core.records import Passage


class Limits(BaseModel):
    """The limits of one request."""

    model_config = ConfigDict(frozen=True)

    body_bytes: int = Field(8 << 20, gt=0, description="bytes of a request's body")
    depth: int = Field(1000, gt=0, description="k + offset")
    query_characters: int = Field(131_072, gt=0, description="characters of a query")
    concurrent: int = Field(64, gt=0, description="requests at once; more are answered 503 with Retry-After")
    seconds: float | None = Field(None, gt=0, description="seconds of a request, then it is answered 504")


def _valid_text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair is no text") from None
    return text


class SearchRequest(BaseModel):
    """One query."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    query: Annotated[str, AfterValidator(_valid_text)]
    k: int = Field(ge=0)
    offset: int = Field(0, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        unknown = next((key for key in data if key not in cls.model_fields), None) if isinstance(data, dict) else None
        if unknown is not None:
            raise ValueError(f"unknown key {unknown[:50]!r}{did_you_mean(unknown[:50], cls.model_fields)}")
        return data


def _scored(passage: Passage) -> Passage:
    if not math.isfinite(passage.score):
        raise ValueError("a passage's score is not finite")
    return passage


Result = Annotated[Passage, AfterValidator(_scored)]


class SearchAnswer(BaseModel):
    """The passages of one query."""

    digest: str
    """Of the index that answered."""
    passages: list[Result]


class ServedIndex(BaseModel):
    """The description of an index that the server holds."""

    name: str
    digest: str
    chunks: int | None
    """None where the engine does not tell."""


class IndexesAnswer(BaseModel):
    """All indexes of the server."""

    indexes: list[ServedIndex]


class ErrorAnswer(BaseModel):
    """Why a request failed."""

    error: str
