"""Scores and a selection in numbers for the terminal, and the message for a selection that kept nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from statistics import fmean

from rich.table import Table

from ratchet.core.config import SelectConfig
from ratchet.core.records import Cause, Score, Selection
from ratchet.rewards.judge import cut_off
from ratchet.rewards.reward import Ended, has_answer, load_reward
from ratchet.rewards.selection import TIE, cause_text, worst_reward


def mean_reward(selection: Selection) -> float | None:
    """Mean over all trajectories that have a reward."""
    return _mean(chain(*_known(selection)))


def best_reward(selection: Selection) -> float | None:
    """Mean over questions of the best reward, which best-of-n reaches."""
    return _mean(max(values) for values in _known(selection) if values)


def solved_questions(selection: Selection) -> int:
    """The questions that keep a trajectory with a reward of at least `rewards.select.success`."""
    kept = ([choice.rewards[key] or 0.0 for key in choice.kept] for choice in selection.questions)
    return sum(any(reward >= _success(selection) - TIE for reward in rewards) for rewards in kept)


def _success(selection: Selection) -> float:
    return float(selection.rule.get("success", SelectConfig().success))


def _known(selection: Selection) -> list[list[float]]:
    return [[value for value in choice.rewards.values() if value is not None] for choice in selection.questions]


def _mean(values: Iterable[float]) -> float | None:
    listed = list(values)
    return fmean(listed) if listed else None


def _dropped(selection: Selection) -> list[tuple[Cause, int]]:
    return Counter(choice.cause for choice in selection.questions if not choice.kept).most_common()


def _because(cause: Cause, selection: Selection) -> str:
    return cause_text(cause, SelectConfig.model_validate(selection.rule))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _weights_text(selection: Selection) -> str:
    return ", ".join(f"{name}={weight:g}" for name, weight in selection.weights.items())


def scores_lines(names: Sequence[str], scores: Mapping[tuple[str, str], Score], judge: str) -> Iterator[str]:
    """Yield the means of the scores over all answers, the judge's verdicts that are unparsed, and why scores are
    null."""
    means, judged, nulls, equal = [], [], Counter[str](), Counter[str]()
    for name in names:
        reward, given = load_reward(name), [score for (_, scored), score in scores.items() if scored == name]
        title = reward.title if reward.is_outside else name
        means.append(f"{title} {_number(_mean(score.value for score in given if score.value is not None))}")
        if reward.needs_judge:
            judged.append(f"{title} {_unparsed([score for score in given if not score.equal_to])}")
            equal[title] = sum(bool(score.equal_to) for score in given)
        for score in given:
            if score.value is None:
                nulls[f"{title}: {'unfinished: ' * (score.state == 'unfinished')}{score.reason}"] += 1
    yield f"mean scores: {', '.join(means)}"
    if judged:
        yield f"unparsed verdicts of {judge}: {', '.join(judged)}"
    if equal.total():
        yield f"answers judged with an equal one: {', '.join(f'{title} {count}' for title, count in equal.items())}"
    if nulls:
        yield f"null: {'; '.join(f'{count} {reason}' for reason, count in nulls.most_common(3))}"


def _unparsed(scores: Sequence[Score]) -> str:
    cut, again = map(sum, zip((0, 0), *(cut_off(score.verdicts) for score in scores), strict=True))
    told = [f"{cut} cut off"] if cut else []
    told += [f"{again} asked for again with more room"] if again else []
    return f"{sum(score.unparsed for score in scores)}" + (f" ({', '.join(told)})" if told else "")


def selection_lines(selection: Selection) -> list[str]:
    """The rewards of a selection, the questions kept and dropped, and its samples by how they were sampled."""
    rows = dict(_rows(selection))
    dropped = "; ".join(f"{count}: {_because(cause, selection)}" for cause, count in _dropped(selection))
    return [
        f"mean reward {rows['mean reward']}, best of n {rows['best of n']}, kept {rows['mean reward of the kept']} "
        f"({_weights_text(selection)})",
        f"questions kept {rows['questions kept']}, {rows['questions solved']}"
        + (f", dropped {dropped}" if dropped else ""),
        *role_lines(selection),
        "; ".join(origin_lines(selection)),
    ]


def _rows(selection: Selection) -> list[tuple[str, str]]:
    choices = selection.questions
    rewards = {key: value for choice in choices for key, value in choice.rewards.items()}
    kept = [key for choice in choices for key in choice.kept]
    kept_reward = _mean(value for key in kept if (value := rewards[key]) is not None)
    per_question = Counter(len(choice.kept) for choice in choices if choice.kept)
    spread = ", ".join(f"{count} keep {number}" for number, count in sorted(per_question.items()))
    dropped = "\n".join(f"{count}: {_because(cause, selection)}" for cause, count in _dropped(selection))
    return [
        ("mean reward", _number(mean_reward(selection))),
        ("best of n", _number(best_reward(selection))),
        ("mean reward of the kept", _number(kept_reward)),
        ("questions kept", f"{per_question.total()} of {len(choices)}" + (f" ({spread})" if spread else "")),
        ("questions solved", f"{solved_questions(selection)} with a reward of at least {_success(selection):g}"),
        ("trajectories kept", f"{len(kept)} of {len(rewards)}"),
        ("questions dropped", dropped or "0"),
    ]


def role_lines(selection: Selection) -> list[str]:
    """Of how many questions each role keeps a trajectory, where roles have values of their own."""
    kept, asked = Counter[str](), Counter[str]()
    for choice in selection.roles:
        for role in choice.learners:
            asked[role] += 1
            kept[role] += bool(choice.kept)
    parts = [f"{role} from {kept[role]} of {asked[role]} questions" for role in asked]
    return [f"roles learn by their own values: {', '.join(parts)}"] if parts else []


def origin_lines(selection: Selection) -> list[str]:
    """How many trajectories are there, are good and were kept, by how they were sampled."""
    above = f"above {selection.rule.get('min_reward') or 0:g}"
    return [
        f"{name}: {sampled} sampled, {good} {above}, {kept} kept"
        for name, (sampled, good, kept) in selection.origins.items()
    ]


def whatif_table(now: Selection, then: Selection, agreement: Iterable[tuple[str, str, str]] = ()) -> Table:
    """The current selection and another one, side by side. `agreement`: rows on the scores of the two."""
    table = Table("", "current", "what if", title="What if")
    settings = [("weights", _weights_text(now), _weights_text(then))]
    old, new = (SelectConfig.model_validate(selection.rule) for selection in (now, then))
    settings += [(f"select.{key}", str(getattr(old, key)), str(getattr(new, key))) for key in SelectConfig.model_fields]
    rows = zip(_rows(now), _rows(then), strict=True)
    for label, left, right in [*settings, *((label, left, right) for (label, left), (_, right) in rows)]:
        table.add_row(label, left, right)
    for row in agreement:
        table.add_row(*row)
    before = {choice.question_id: frozenset(choice.kept) for choice in now.questions}
    after = {choice.question_id: frozenset(choice.kept) for choice in then.questions}
    changed = [question for question in after if before.get(question, frozenset()) != after[question]]
    gained = sum(not before.get(question) for question in changed)
    lost = sum(not after[question] for question in changed)
    table.add_row(
        "questions changed",
        "",
        f"{len(changed)} ({gained} now kept, {lost} now dropped, {len(changed) - gained - lost} other trajectories)",
    )
    return table


ADVICE: dict[Cause, str] = {
    "no_trajectory": "run `ratchet sample` for this round to its end",
    "missing_scores": "take the weight from scores that are null here (see 'null'), in rewards.weights",
    "reward_too_low": "sample more (sampling.samples) or hotter (sampling.temperature), take questions "
    "within the model's reach, or lower rewards.select.min_reward",
    "score_too_low": "lower rewards.select.min_scores, or sample more (sampling.samples)",
    "surplus": "set rewards.select.balance_searches to false",
    "all_equal": "set rewards.select.drop_all_equal to false",
    "none_finished": "look at how trajectories end (`ratchet report`): raise the system's budgets or max_tokens, use "
    "system.malformed: constrain, or let rewards.select.keep_status admit out_of_budget",
}
"""By cause, the setting to change."""


def single_answer(kept: Sequence[Ended]) -> str:
    """A warning where the kept trajectories of several questions all give the same answer; else empty."""
    answers = {" ".join(trajectory.answer.casefold().split()) for trajectory in kept}
    questions = len({trajectory.question_id for trajectory in kept})
    if questions < 2 or len(answers) > 1:
        return ""
    return (
        f"all {len(kept)} kept trajectories, of {questions} questions, answer {kept[0].answer!r}, and an adapter may "
        "learn to say nothing else: sample more or hotter where the answer is another one (sampling.samples, "
        "sampling.temperature), or take other questions"
    )


def cut_off_costs(selection: Selection, trajectories: Iterable[Ended]) -> str:
    """A warning where trajectories with an answer have the least reward, because their costs are cut off there."""
    worst = worst_reward(selection.weights)
    rewards = {key: value for choice in selection.questions for key, value in choice.rewards.items()}
    ended = selection.rule.get("keep_status", SelectConfig().keep_status)
    counted = [rewards.get(one.key) for one in trajectories if has_answer(one) and one.status in ended]
    if not worst or not (cut := counted.count(worst)):
        return ""
    return (
        f"{cut} of {len(counted)} trajectories with an answer cost so much that their reward is the least, {worst:g}: "
        "they are equal to each other, and to those without an answer. Bring the weights of costs nearer to 0"
    )


def nothing_selected(selection: Selection) -> str:
    """Why nothing was kept, by cause, and what may help."""
    lines = ["no trajectory was selected, so there is nothing to train on:"]
    for cause, count in _dropped(selection):
        lines.append(f"  {count} of {len(selection.questions)} questions: {_because(cause, selection)}")
        lines.append(f"    -> {ADVICE[cause]}")
    lines.append("`ratchet score whatif --config ... --weights ...` tries other weights and rules on these scores.")
    return "\n".join(lines)
