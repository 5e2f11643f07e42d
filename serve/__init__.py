"""The systems of a config as a service: an OpenAI-compatible endpoint, and a page to ask and compare."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Limits(BaseModel):
    """The limits of the server and of one request."""

    model_config = ConfigDict(frozen=True)

    concurrent: int = Field(4, gt=0, description="requests answered at once")
    waiting: int = Field(32, ge=0, description="requests that wait for their turn; more are answered 429")
    seconds: float = Field(600.0, gt=0, description="seconds of a request with its waiting, then it is answered 504")
    question_characters: int = Field(20_000, gt=0, description="characters of a question")
    body_bytes: int = Field(4 << 20, gt=0, description="bytes of a request's body")
