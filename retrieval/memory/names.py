"""The names in a text, and an order of texts by the names that they share."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ratchet.words import without_invisible
from retrieval.memory.records import entity_key

STARTERS = {"a", "an", "the", "this", "that", "these", "those", "there", "it", "he", "she", "they", "we", "his", "her"}
STARTERS |= {"in", "on", "at", "by", "for", "from", "to", "of", "with", "after", "before", "during", "since", "as"}
STARTERS |= {"is", "are", "was", "were", "does", "do", "did", "has", "have", "had", "can", "if", "while", "although"}
STARTERS |= {"who", "what", "when", "where", "which", "why", "how", "and", "but", "or", "not", "no", "all", "both", "i"}
"""Words that begin no name, though a sentence may begin with them; in capitals (WHO, IT) they do."""
TOKEN = re.compile(r"[\w'’.-]*\w|[^\w\s]")


def names_in(text: str) -> list[str]:
    """Runs of words that begin with a capital, each once: what stands in for entities where nobody extracts them."""
    names, run = [], list[str]()
    for token in [*TOKEN.findall(without_invisible(text)), "."]:
        if token[0].isupper() and (run or token[0].lower() + token[1:] not in STARTERS):
            run.append(token)
        elif run:
            names.append(" ".join(run).removesuffix("'s").removesuffix("’s"))
            run = []
    return list(dict.fromkeys(names))


def by_shared_names(texts: Sequence[str]) -> list[int]:
    """The places of all texts, those that share a name (`names_in`) one after the other.

    The first text is followed by those that share a name with it, these by those that share one with them, and so on;
    then comes the first that is left. Otherwise the order stays.
    """
    names = [{entity_key(name) for name in names_in(text)} for text in texts]
    having: dict[str, list[int]] = {}
    for place, own in enumerate(names):
        for name in own:
            having.setdefault(name, []).append(place)
    order: dict[int, None] = {}
    for first in range(len(texts)):
        group = [first] if first not in order else []
        order.update(dict.fromkeys(group))
        for place in group:  # which grows
            near = {other for name in names[place] for other in having.pop(name, ())}
            fresh = [other for other in sorted(near) if other not in order]
            order.update(dict.fromkeys(fresh))
            group += fresh
    return list(order)
