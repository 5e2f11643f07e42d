"""Reasoning aloud, a sentence at a time: the prompt, the cut and the answer that IRCoT and FLARE share.

Both papers show the model 8 to 20 worked examples of their benchmarks; instruct models understand a request, so here
it is one, with one worked example of our own.
"""

from __future__ import annotations

import re

from ratchet.agents.core.lookahead import Draft

THINK = (
    "Answer the question step by step with the help of the documents. Write short sentences, one fact in each. "
    'End with "So the answer is:" and the answer in as few words as possible.'
)
EXAMPLE_QUESTION = "In which country was the composer of The Copper Lark born?"
EXAMPLE = (
    {
        "question": EXAMPLE_QUESTION,
        "task": f"Question: {EXAMPLE_QUESTION}",
        "documents": "[1] The Copper Lark: The Copper Lark is an opera by Odo Brenn.\n"
        "[2] Odo Brenn: Odo Brenn was born in Graz in Austria.",
    },
    "The Copper Lark was composed by Odo Brenn. Odo Brenn was born in Graz in Austria. So the answer is: Austria.",
)
"""What a worked example's prompt is filled in with, and its reply."""
ANSWER = re.compile(r"\banswer is\b[ \t]*:?[ \t]*", re.IGNORECASE)
ENDING = re.compile(r"(?<![.!?…])[.!?…]+[\"'”’)\]]*(?=\s|$)|[。！？]+[」』”’）]*|\n")
SHORT = {"mr", "mrs", "ms", "dr", "prof", "st", "mt", "gen", "col", "lt", "sgt", "capt", "rev", "hon", "jr", "sr"}
SHORT |= {"vs", "ca", "approx", "inc", "ltd", "corp", "e.g", "i.e"}
"""Abbreviations whose full stop ends no sentence."""
BEFORE_NUMBERS = {"no", "nos", "vol", "pp", "jan", "feb", "mar", "apr", "jun", "jul", "aug", "sep", "sept", "oct"}
BEFORE_NUMBERS |= {"nov", "dec"}
"""Those that are abbreviations where a number follows."""
INITIAL = re.compile(r"(\w\.)*[^\W\d]")


def first_sentence(text: str) -> int:
    """How many characters the first sentence takes, blanks before it included; all of them where none ends.

    A line break ends a sentence. A full stop does not where it belongs to an abbreviation, an initial or the number of
    a list's item, nor where the text goes on with a small letter.
    """
    start = len(text) - len(text.lstrip())
    for ending in ENDING.finditer(text, start):
        after = re.compile(r"\S").search(text, ending.end())
        if not ending[0].startswith(".") or after is None:
            return ending.end()
        word = text[max(start, ending.start() - 20) : ending.start()].split()[-1:]
        last = word[0].lstrip("\"'“‘([").lower() if word else ""
        item = text[start : ending.start()].isdigit()
        short = last in SHORT or (last in BEFORE_NUMBERS and after[0].isdigit())
        if not (item or short or INITIAL.fullmatch(last) or after[0].islower()):
            return ending.end()
    return len(text)


def sentence_tokens(draft: Draft) -> int:
    """How many of a draft's ids its first sentence takes."""
    return draft.tokens(first_sentence(draft.text))


def stated_answer(text: str) -> str | None:
    """What stands behind the last "answer is", on its line and without its full stop; None where nothing does."""
    said = ANSWER.split(text)
    if len(said) == 1:
        return None
    return (said[-1].strip().splitlines() or [""])[0].strip().removesuffix(".") or None
