"""Rows of pairs of answers with the labels of people, in RAGChecker's format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]


def labelled(question: str, labels: Sequence[int], first: str = "one", second: str = "two", **fields: object) -> Row:
    names = ("correctness", "completeness", "overall")
    return {
        "query": question,
        "gt_answer": "the reference",
        "model1": {"model_name": "a", "response": first},
        "model2": {"model_name": "b", "response": second},
        **{f"{name}_label": label for name, label in zip(names, labels, strict=True)},
        **fields,
    }
