"""The results of an evaluation, written into the model card of the adapter that was evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ratchet.core.files import write_atomic
from ratchet.core.markdown import markdown_text
from ratchet.evaluation.formats import format_interval, format_number, paired_count, paired_estimate
from ratchet.evaluation.headline import gain_sentence
from ratchet.evaluation.measures.estimates import Difference, Estimate
from ratchet.evaluation.measures.measures import BY_NAME, LENIENT, strict_form
from ratchet.evaluation.results import TRAINED, Results
from ratchet.inference.adapters import adapter_digest
from ratchet.training.card import RESULTS


def complete_card(adapter: Path, suite: Sequence[Results]) -> bool:
    """Write the results into the adapter's card, in place of earlier ones; False where they are of another adapter, or
    the card has no place for them."""
    card = adapter / "README.md"
    trained = [arm for results in suite if (arm := results.arm(TRAINED)) is not None]
    if not trained or not card.exists() or {arm.policy for arm in trained} != {adapter_digest(adapter)}:
        return False
    text = card.read_text(encoding="utf-8")
    place = RESULTS.search(text)
    if place is None:
        return False
    about = "## Results\n\nMeans over questions with 95% bootstrap intervals; differences are paired by question.\n"
    sets = [_of_set(results) for results in suite if results.arm(TRAINED) is not None]
    write_atomic(card, f"{text[: place.start(1)]}\n" + "\n".join([about, *sets]) + text[place.end(1) :])
    return True


def _of_set(results: Results) -> str:
    """The results on one question set: the score, and apart from it how often form let an answer be scored at all."""
    trained, base, best = results.arm(TRAINED), results.arms[0], results.best_baseline
    baseline = results.arm(best.name) if best else None
    assert trained is not None
    arms = [("base", base), ("trained", trained), *([(best.name, baseline)] if best and baseline else [])]
    measures = {
        results.primary: BY_NAME[results.primary].title,
        strict_form(results.primary) + LENIENT: f"{BY_NAME[results.primary].short} among answered (substance)",
        "parse_rate": "actions that parsed (form)",
        "finished": "finished (form)",
        "calls": "model calls a question",
    }
    head = ["measure", *(markdown_text(name) for name, _ in arms), "trained - base"]
    head += [f"trained - {markdown_text(best.name)}"] if best and baseline else []
    comparison = results.comparison(TRAINED)
    lines = [_row(head), _row(["---"] * len(head))]
    for name, title in measures.items():
        if name not in base.measures:
            continue
        difference = comparison.measures.get(name) if comparison else None
        own, others = [arm.measures.get(name) for _, arm in arms[:2]], arms[2:]
        row = [title + paired_count(difference, *own)]
        row += [_with_interval(paired_estimate(own[at], difference, after=bool(at)), name) for at in (0, 1)]
        row += [_with_interval(arm.measures.get(name), name) for _, arm in others]
        row.append(_with_interval(difference, name, sign=True))
        if best and baseline:
            row.append(_with_interval(best.difference, name, sign=True) if name == results.primary else "")
        lines.append(_row(row))
    title = results.title or results.split
    table = "\n".join(lines)
    # The verdict leaves form and substance out where form did not change.
    gain = gain_sentence(comparison.gain, results.primary) if comparison and comparison.gain.form.n else ""
    words = results.verdict if gain in results.verdict else f"{results.verdict} {gain}"
    return f"### {markdown_text(title)}: {results.questions} questions\n\n{table}\n\n{markdown_text(words)}\n"


def _with_interval(estimate: Estimate | Difference | None, name: str, sign: bool = False) -> str:
    if estimate is None or estimate.mean is None:
        return "-"
    digits = BY_NAME[name].digits
    return f"{format_number(estimate.mean, digits, sign)} {format_interval(estimate, digits)}".rstrip()


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
