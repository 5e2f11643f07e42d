"""What servers mean by refusing a request, told by their own codes and types, and else by words that mean one thing.

Read from vLLM 0.32's source (its errors have no code of their own, but name the parameter) and from the error answers
of OpenAI, llama.cpp, SGLang, TGI and llama-cpp-python.
"""

from __future__ import annotations

import re
from collections.abc import Collection

REFUSALS = frozenset({400, 413, 422})
"""Statuses that blame the request; llama.cpp's older versions answer 500, which is tried again and then fails."""
CONTEXT_CODES = {"context_length_exceeded", "exceed_context_size_error", "input_tokens", "input_text"}
CONTEXT_WORDS = re.compile(
    r"""maximum\ context\ length\ (is|of)\ \d+\ tokens
    | longer\ than\ the\ (maximum\ model\ length\ of|model's\ context\ length) \ \(?\d+
    | exceeds?\ the\ available\ context\ size
    | requested\ tokens\ \(\d+\)\ exceed\ context\ window\ of\ \d+
    | `?inputs`?\ (tokens\ \+\ `?max_new_tokens`?\ must\ be\ <= | must\ have\ less\ than\ \d+\ tokens)
    | max_tokens\ must\ be\ at\ least\ 1,\ got\ 0 # vLLM, where a prompt of exactly the context's length leaves no room
    """,
    re.IGNORECASE | re.VERBOSE,
)
SCHEMA_CODES = {"response_format", "structured_outputs", "guided_json", "grammar"}
SCHEMA_WORDS = re.compile(r"schema|grammar|structured.outputs?|response_format|guided_|ebnf", re.IGNORECASE)


def context_is_full(status: int, codes: Collection[str], words: str) -> bool:
    """Whether the prompt has more tokens than the server's context holds."""
    return status in REFUSALS and (not CONTEXT_CODES.isdisjoint(codes) or bool(CONTEXT_WORDS.search(words)))


def schema_is_refused(status: int, codes: Collection[str], words: str) -> bool:
    """Of a request that held a schema."""
    return status in REFUSALS and (not SCHEMA_CODES.isdisjoint(codes) or bool(SCHEMA_WORDS.search(words)))
