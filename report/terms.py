"""The page's explanations in plain words: of what became of a trajectory, and of terms and measures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

from ratchet.core.records import ModelCall, Question, Score, Search, ToolCall, Trajectory
from ratchet.evaluation.measures.measures import measure_of, strict_form
from ratchet.rewards.reward import has_answer
from ratchet.rewards.rules import accuracy, token_f1

ENDINGS = {
    "finished": "The system ended by itself.",
    "unparsed": "A reply was not in the form that was asked for, or was cut off before its end, so that its answer "
    "does not count: rewards and strict measures take it for the worst. Where it was cut off, a larger max_tokens "
    "helps.",
    "out_of_budget": "The limit of calls, turns, tokens or time was reached before the system ended by itself. Rewards "
    "and strict measures count it as the worst.",
    "failed": "A server or a machine failed, not the model. It is sampled again when the stage is run again, and has "
    "no reward until then.",
}
PROBLEMS = {
    "no_answer": "It gave no answer, so every score of it is 0.",
    "wrong_answer": "The answer shares no word with any accepted answer, or is not the right label.",
    "partly_right": "The answer shares words with an accepted answer, but differs from it (F1 between 0 and 1).",
    "null_score": "A score has no value, for the reason that stands beside it. It is in no mean, and not counted as 0.",
    "malformed": "An action did not parse at first. Where asking again helped, the trajectory continued.",
    "cut_off": "The model reached its limit of new tokens before it ended its turn.",
    "tool_error": "A tool refused a call; the trajectory shows its message.",
    "nothing_found": "A search returned no passage.",
}
OUTCOMES = {**ENDINGS, **PROBLEMS}


def outcomes_of(question: Question, trajectory: Trajectory) -> list[str]:
    """The trajectory's ending, then its problems, as far as these are seen without its scores."""
    calls = [event for event in trajectory.events if isinstance(event, ModelCall)]
    f1 = _answer_score(question, trajectory)
    problems = {
        "no_answer": not has_answer(trajectory),
        "wrong_answer": f1 == 0,
        "partly_right": f1 is not None and 0 < f1 < 1,
        "malformed": any(call.parse == "malformed" for call in calls),
        "cut_off": any(call.finish_reason == "length" for call in calls),
        "tool_error": any(isinstance(event, ToolCall) and event.error for event in trajectory.events),
        "nothing_found": any(isinstance(event, Search) and not event.passages for event in trajectory.events),
    }
    return [trajectory.status, *(name for name, holds in problems.items() if holds)]


def with_null_scores(outcomes: Sequence[str], scores: Iterable[Score]) -> list[str]:
    """The outcomes of a trajectory without its scores, and whether one of these has no value."""
    names = {*outcomes, *("null_score" for score in scores if score.value is None)}
    return [name for name in OUTCOMES if name in names]


def _answer_score(question: Question, trajectory: Trajectory) -> float | None:
    if not has_answer(trajectory) or not (question.label or question.answers):
        return None
    return accuracy(trajectory.answer, question) if question.label else token_f1(trajectory.answer, question.answers)


def count_outcomes(sections: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """{columns, rows} of the table of problems: a column for each section and arm, a row for each that occurs."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    titles: dict[tuple[str, str], str] = {}
    for section in sections:
        for question in section["questions"]:
            for run in question["runs"]:
                column = (section["name"], run["arm"])
                titles[column] = {"": "sampled", "adapter": "trained"}.get(run["arm"], run["arm"])
                counts.setdefault(column, Counter()).update(run["outcomes"])
    rows = [
        {
            "name": name,
            "message": message,
            "cells": [(section, arm, numbers[name]) for (section, arm), numbers in counts.items()],
        }
        for name, message in OUTCOMES.items()
        if name != "finished" and any(numbers[name] for numbers in counts.values())
    ]
    return {"columns": list(titles.values()), "rows": rows}


TERMS = {
    "strict": "Strict: over all trajectories. One that did not finish, or has no answer, counts as the worst value.",
    "as returned": "As returned: as strict, but an answer at the end of the budget counts, as in mRAG's paper.",
    "lenient": "Lenient: only over the trajectories that have an answer, however they ended.",
    "interval": "The 95% interval of the mean: its range in 95% of resamples of the questions (bootstrap). A "
    "difference whose interval holds 0 may be chance, and with few questions one whose interval does not.",
    "p": "The probability of a difference at least this large if training changed nothing (paired sign-flip test over "
    "questions). Below 0.05 is usually called significant.",
    "difference": "Trained minus base, paired by question. Green is better and red is worse, where p is below "
    "0.05 and the interval excludes 0 (where fewer than 10 questions changed, by p alone); without a colour the "
    "difference may be chance.",
    "changes": "Questions whose main measure rose (gained) or fell (broken) against base by 0.5 or more: with labels, "
    "those that became right or wrong. Sampling the base model again shows how many change by chance.",
    "base": "The model without an adapter.",
    "trained": "The model with the adapter of this round.",
    "promotion": "Accepting a round's adapter for sampling the next round, because it is better on dev.",
    "reward": "The weighted mean of a trajectory's scores, less its costs. Training keeps the best-rewarded "
    "trajectories.",
    "trajectory": "One attempt at a question, with every model call and search in it.",
    "arm": "One system, with or without an adapter, on the same questions as the others.",
    "best of n": "The mean over questions of the best reward among a question's samples.",
    "parsed": "The share of actions whose text could be read as what was asked for.",
    "macro-F1": "The mean of the F1 of every label that is right for some question, so that rare labels count as much.",
    "null": "Trajectories without a value: they are in no mean, and not counted as zero.",
}
MEASURES = {
    "accuracy": "The share of answers that are the right label.",
    "macro_f1": TERMS["macro-F1"],
    "em": "Exact match: 1 where the answer equals an accepted answer but for case, articles and punctuation.",
    "f1": "F1 of the answer's words against the best accepted answer: the harmonic mean of token precision and recall.",
    "token_precision": "The share of the answer's words that an accepted answer has. Long answers lower it.",
    "token_recall": "The share of an accepted answer's words that the answer has. Long answers raise it.",
    "correctness": "The share of the question's facts (nuggets) that the judge finds in the answer.",
    "correctness_raw": "Nugget correctness on the judge's own scale, on which the paper's table 1 gives it.",
    "precision": "The share of the answer's claims that the judge finds correct.",
    "faithfulness": "How far the returned documents support the answer's claims, by the judge.",
    "faithfulness_raw": "Faithfulness on the judge's own scale, on which the paper's table 1 gives it.",
    "relevance": "How directly the answer speaks to the question, by the judge.",
    "unattributed": "The share of the answer's claims that its documents do not fully support. Lower is better.",
    "reference_similarity": "How similar the answer is to an accepted one in what the question does not say already, "
    "by words and by the embedder: without a judge.",
    "answer_match": "F1, but 0 for another number, date or name, or the opposite: a rule, without a judge.",
    "nugget_containment": "The share of the question's facts whose words are in the answer: a rule, without a judge.",
    "lexical_support": "The share of the answer's words that are in the returned documents: a rule, without a judge.",
    "reported": "What the agent made of its own work, as it told the gateway.",
    "unattributed_rule": "The share of sentences with few words in the documents: a rule. Lower is better.",
    "reward": TERMS["reward"],
    **ENDINGS,
    "parse_rate": TERMS["parsed"],
    "answer_recall": "Whether an accepted answer is in what was retrieved.",
    "gold_recall": "The share of the documents that hold the answer which were retrieved.",
    "answer_recall_returned": "Whether an accepted answer is in the documents returned with the answer.",
    "gold_recall_returned": "The share of the documents that hold the answer which were returned with it.",
    "not_retrieved": "The share of questions with an F1 below 0.5 where no retrieved document has an accepted answer.",
    "not_returned": "The share of questions with an F1 below 0.5 where a retrieved document has an accepted answer and "
    "no returned one has.",
    "misread": "The share of questions with an F1 below 0.5 where a returned document has an accepted answer.",
    "cached_tokens": "Prompt tokens that were not computed again, since the server had kept an earlier prompt.",
}
"""By the name of a measure's strict form."""


def term(text: str, name: str = "") -> Markup:
    """A term with its explanation; `name` is its key where the text is another."""
    return _explained(text, TERMS[name or text])


def measure_term(name: str, text: str = "") -> Markup:
    """A measure, by default its title, with its explanation and that of its form; the text alone where it has none."""
    measure = measure_of(name)
    parts = (MEASURES.get(strict_form(name), ""), TERMS.get(measure.form, ""))
    return _explained(text or measure.title, " ".join(part for part in parts if part))


def _explained(text: str, explanation: str) -> Markup:
    if not explanation:
        return escape(text)
    return Markup('<span class="term" title="{}">{}</span>').format(explanation, text)
