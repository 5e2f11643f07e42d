"""The systems of a config as a service: an OpenAI-compatible endpoint, and a page to ask and compare."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Limits:
    """The limits of the server and of one request, with the help of their arguments."""

    concurrent: int = field(default=4, metadata={"help": "most requests answered at once"})
    waiting: int = field(
        default=32, metadata={"help": "most requests that wait for their turn; more are answered 429", "minimum": 0}
    )
    seconds: float = field(
        default=600.0, metadata={"help": "most seconds of a request with its waiting, then it is answered 504"}
    )
    question_characters: int = field(default=20_000, metadata={"help": "most characters of a question"})
    body_bytes: int = field(default=4 << 20, metadata={"help": "most bytes of a request's body"})
