"""The headline of an evaluation: the trained model against its base, and against the best untrained baseline.

`ratchet evaluate`, the report and the adapter's model card say the same words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ratchet.core.escape import markdown_text
from ratchet.core.files import write_atomic
from ratchet.evaluation.formats import format_estimate, measure_row
from ratchet.evaluation.measures.estimates import Difference
from ratchet.evaluation.measures.measures import LENIENT, answered_measure, direction, measure_of, strict_form
from ratchet.evaluation.measures.retrieval import LOSSES
from ratchet.evaluation.results import (
    TRAINED,
    BaselineComparison,
    Comparison,
    Gain,
    LabelFloor,
    QuestionChanges,
    Results,
)
from ratchet.inference.adapters import adapter_digest
from ratchet.training.adapter import RESULTS


def verdict(
    comparison: Comparison | None,
    primary: str,
    best: BaselineComparison | None = None,
    floor: LabelFloor | None = None,
    selection: Difference | None = None,
    rival: BaselineComparison | None = None,
) -> tuple[str, str]:
    """(the verdict in a few words, the sentences with its numbers); no words where the numbers allow no verdict.

    `direction` says what is better or worse, and what is not clear. A gain is one in form only where the share of
    answers clearly rose, and the answers themselves did not clearly become better. `best` is the best untrained
    baseline, `rival` the best of those that were trained too.
    """
    if comparison is None:
        return "", "The base model alone was measured: there is no adapter to compare it with."
    difference = comparison.measures.get(primary, Difference(n=0))
    sentences = [f"{_numbers(difference, primary)}."]
    words = form_only = ""
    if found := direction(difference, primary):
        words = f"The trained model is {found}"
        form_only = " in form only" if found == "better" and comparison.gain.is_form_only else ""
    elif difference.low is not None:
        words = "No clear difference"
    if comparison.gain.form.mean:
        sentences.append(gain_sentence(comparison.gain, primary))
    sentences += remarks(comparison, primary, floor, selection)
    if rival is not None and rival.difference.mean is not None:
        sentences.append(baseline_sentence(rival, primary, is_trained=True))
    if best is None or best.difference.mean is None:
        return words + form_only, " ".join(sentences)
    sentences.append(baseline_sentence(best, primary))
    return words and _with_baseline(words, form_only, difference, best, primary), " ".join(sentences)


def short_verdict(results: Results) -> str:
    """The verdict with the numbers of the primary measure alone."""
    if results.comparison(TRAINED) is None:
        return results.verdict
    numbers = _numbers(results.difference(TRAINED) or Difference(n=0), results.primary)
    return ". ".join(filter(None, (results.headline, f"{numbers}.")))


def remarks(
    comparison: Comparison, primary: str, floor: LabelFloor | None, selection: Difference | None
) -> Iterator[str]:
    """Yield a sentence on where wrong answers are lost, on what labels give for nothing, and on the worth of selection,
    each where there is one."""
    if (lost := loss_sentence(comparison)) is not None:
        yield lost
    accuracy = comparison.measures.get(primary, Difference(n=0)).after
    if floor is not None and strict_form(primary) == "accuracy" and accuracy is not None:
        yield _floor_sentence(floor, accuracy)
    if selection is not None and selection.mean is not None:
        yield selection_sentence(selection, primary)


def gain_sentence(gain: Gain, primary: str) -> str:
    """The numbers of form and of substance."""
    form = f"In form, {measure_of(answered_measure(primary)).short.lower()}: {_change(gain.form)}"
    if gain.substance.before is None:
        return f"{form}; no question was answered by both, so their substance cannot be compared."
    answered = f"on {_questions(gain.substance.n)} that both answered"
    return f"{form}; in substance, {measure_of(primary).short} {answered}: {_change(gain.substance)}."


def selection_sentence(selection: Difference, primary: str) -> str:
    """The worth of selection: the trained model less that of a random selection."""
    worth = f"{selection.mean:+.2f}{_interval(selection)}"
    title, questions = measure_of(primary).short, f"{_chance(selection)} on {_questions(selection.n)}"
    if selection.is_clear():
        return f"Selection is worth {worth} in {title} over random trajectories{questions}."
    return f"Selection shows no clear difference from random trajectories: {worth} in {title}{questions}."


def loss_sentence(comparison: Comparison) -> str | None:
    """The places where the trained model lost its wrong answers; None without such, or where nothing was looked up."""
    shares = [comparison.measures.get(name, Difference(n=0)).after for name in LOSSES]
    if None in shares or not any(shares):
        return None
    places = ("where no retrieved document has the answer", "where one has it but was not returned", "misread")
    parts = ", ".join(f"{share:.2f} {place}" for share, place in zip(shares, places, strict=True))
    return f"Wrong after training (F1 below 0.5), as shares of the questions: {parts}."


def changes_sentence(changes: QuestionChanges | None, again: QuestionChanges | None) -> str:
    """The questions that training gained and broke (`changes`), and beside them those of the base model sampled again,
    which are noise; empty where neither was counted."""
    trained = f"questions gained {changes.gained}, broken {changes.broken}" if changes else ""
    noise = f"base again against base: gained {again.gained}, broken {again.broken}" if again else ""
    return "; ".join(filter(None, (trained, noise)))


def _floor_sentence(floor: LabelFloor, accuracy: float) -> str:
    against = "above" if accuracy > floor.accuracy else "not above"
    return (
        f"Always answering {floor.commonest} scores {floor.accuracy:.2f} and chance {floor.chance:.2f}: the trained "
        f"model's {accuracy:.2f} is {against} the former."
    )


def _with_baseline(words: str, form_only: str, difference: Difference, best: BaselineComparison, primary: str) -> str:
    """The few words beside the best baseline: whether it is ahead, and then to use it."""
    if best.difference.low is None:
        return words + form_only
    baseline = (
        f"the best untrained baseline, {best.name}" if best.candidates > 1 else f"the untrained baseline {best.name}"
    )
    against_base, against_best = direction(difference, primary), direction(best.difference, primary)
    second = f"{against_best} than {baseline}" if against_best else f"not clearly different from {baseline}"
    if (best.difference.mean or 0.0) * (-1 if measure_of(primary).better == "lower" else 1) < 0:  # clearly or not
        ahead = "" if against_best == "worse" else ", which is ahead"
        second += f"{ahead}: use {best.name}"
    if not against_base:
        return f"{words} from base, {'but' if against_best else 'and'} {second}"
    return f"{words} than base{form_only}, {'and' if against_base == against_best else 'but'} {second}"


def baseline_sentence(best: BaselineComparison, primary: str, is_trained: bool = False) -> str:
    """The numbers of the baseline and the trained model, their costs, and that the baseline was chosen by its score.
    `is_trained`: whether the baseline has an adapter of its own."""
    own = f"{best.name[:1].upper()}{best.name[1:]}, with an adapter of its own"
    named = own if is_trained else f"Untrained {best.name}"
    text = f"{named} -> trained: {_numbers(best.difference, primary)}"
    if best.costs:
        text += f"; {_cost(best, trained=False)} a question -> {_cost(best, trained=True)}"
    if best.candidates > 1:
        others = f"{best.candidates} {'baselines with adapters of their own' if is_trained else 'untrained baselines'}"
        text += f". Of {others}, {best.name} scored best on these questions; on new ones it may score lower"
    return f"{text}."


def _cost(best: BaselineComparison, trained: bool) -> str:
    costs = {name: pair.trained if trained else pair.baseline for name, pair in best.costs.items()}
    tokens = [value for name, value in costs.items() if name != "calls"]
    parts = [f"{costs['calls']:.1f} model calls"] if "calls" in costs else []
    return " and ".join([*parts, *([f"{sum(tokens):.0f} tokens"] if tokens else [])])


def _questions(count: int) -> str:
    return f"{count} question{'' if count == 1 else 's'}"


def _numbers(difference: Difference, primary: str) -> str:
    """'F1 0.08 -> 0.48: +0.40 [0.31, 0.49], p < 0.001 on 100 questions'"""
    title = measure_of(primary).short
    if difference.before is None or difference.after is None or difference.mean is None:
        return f"{title}: no question has a value in both arms, so base and trained cannot be compared"
    if difference.low is None or difference.p is None:
        return f"{title} {_change(difference)} on one question, which says nothing about other questions"
    return f"{title} {_change(difference)}{_chance(difference)} on {difference.n} questions"


def _chance(difference: Difference) -> str:
    """', p = 0.125', empty where there is no test."""
    if difference.p is None:
        return ""
    return ", p < 0.001" if difference.p < 0.001 else f", p = {difference.p:.3f}"


def _change(difference: Difference) -> str:
    """'0.08 -> 0.48: +0.40 [0.31, 0.49]', without the interval where there is none."""
    return f"{difference.before:.2f} -> {difference.after:.2f}: {difference.mean:+.2f}{_interval(difference)}"


def _interval(difference: Difference) -> str:
    """' [0.31, 0.49]', empty where there is none."""
    return "" if difference.low is None else f" [{difference.low:.2f}, {difference.high:.2f}]"


# The model card


def complete_card(adapter: Path, suite: Sequence[Results]) -> bool:
    """Write the results into the adapter's card, in place of earlier ones; False where they are of another adapter, or
    the card has no place for them."""
    card = adapter / "README.md"
    trained = [(results, arm) for results in suite if (arm := results.arm(TRAINED)) is not None]
    if not trained or not card.exists() or {arm.policy for _, arm in trained} != {adapter_digest(adapter)}:
        return False
    text = card.read_text(encoding="utf-8")
    place = RESULTS.search(text)
    if place is None:
        return False
    about = "## Results\n\nMeans over questions with 95% bootstrap intervals; differences are paired by question.\n"
    written = "\n".join([about, *(_card_section(results) for results, _ in trained)])
    write_atomic(card, f"{text[: place.start(1)]}\n{written}{text[place.end(1) :]}")
    return True


def _card_section(results: Results) -> str:
    """The results on one question set: the score, and apart from it how often form let an answer be scored at all."""
    best = results.best_baseline
    baseline = results.arm(best.name) if best else None
    measures = {
        results.primary: measure_of(results.primary).title,
        strict_form(results.primary) + LENIENT: f"{measure_of(results.primary).short} among answered (substance)",
        "parse_rate": "actions that parsed (form)",
        "finished": "finished (form)",
        "calls": "model calls a question",
    }
    others = [markdown_text(baseline.name)] if baseline else []
    lines = [["measure", "base", "trained", *others, "trained - base", *(f"trained - {name}" for name in others)]]
    lines.append(["---"] * len(lines[0]))
    for name, title in measures.items():
        row = measure_row(results, name)
        if row.base is None:
            continue
        cells = [title + (f" ({row.paired})" if row.paired else "")]
        cells += [format_estimate(row.base, name), format_estimate(row.trained, name)]
        cells += [format_estimate(baseline.measures.get(name), name)] if baseline else []
        cells.append(format_estimate(row.difference, name))
        if baseline:
            cells.append(format_estimate(best.difference, name) if best and name == results.primary else "")
        lines.append(cells)
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    words, comparison = results.verdict, results.comparison(TRAINED)
    if comparison and comparison.gain.form.n and not comparison.gain.form.mean:  # then the verdict leaves it out
        words += f" {gain_sentence(comparison.gain, results.primary)}"
    title = markdown_text(results.title or results.split)
    return f"### {title}: {results.questions} questions\n\n{table}\n\n{markdown_text(words)}\n"
