"""Choosing the trajectories to train on (Salemi et al. 2025, arXiv 2506.10844, section 3.2).

The functions are pure: the same scores, weights and rule (`rewards.select`) give the same choice. For each question:

1. Every trajectory gets a reward: the weighted mean of its scores less its costs (`reward`); the least where it ended
   with none of the statuses `keep_status`, or without an answer; none where it failed, since it is sampled again.
2. The candidates are those that ended with such a status, have an answer and have every score with a weight.
3. The question is dropped by the first of `DROPPING` that gives a cause.
4. Else the candidates with the best reward are kept, up to `ties`. Among tied ones those with the best scores of
   `prefer`, or the least costs, win, then the lowest sample numbers, and one that does the same as a kept one is
   skipped (`distinct`), unless `similarity` is null.

Where a reward has a value for each role, there is a choice for each role, by the rewards that its own values give, and
its rows alone are learnt: a searcher that found everything teaches although the answer was wrong.

Beside the kept ones, a question's choice names the candidates that an objective over good and bad trajectories may
learn from (`training.objectives`): all of them that are not the same as another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from ratchet.agents.core.exploration import GOLD_SEARCHES
from ratchet.core.config import SelectConfig
from ratchet.core.errors import UserError
from ratchet.core.records import (
    Cause,
    Conversation,
    Question,
    QuestionChoice,
    Score,
    Selection,
    Trajectory,
    content_key,
)
from ratchet.rewards.reward import Ended, check_weights, has_answer, load_reward, strict_value
from ratchet.sampling.store import Outline, Trajectories

TIE = 1e-9
"""Rewards closer than this count as equal: they differ only by rounding."""

ALONE = {"drop_all_equal": False, "difficulty": "none"}
"""The rule for a question's one sample of the curriculum, which has no others to be compared with."""

GRAM = 4
"""Tokens of the sequences by which the similarity of trajectories is measured."""

Actions = tuple[tuple[str, tuple[int | str, ...]], ...]
"""What was sampled of a trajectory: (role, ids, or characters of a dialogue that is text) of each conversation."""

Scores = Mapping[tuple[str, str], Score]
Weights = Mapping[str, float]


def select(
    questions: Sequence[Question],
    trajectories: Trajectories,
    scores: Scores,
    weights: Weights,
    rule: SelectConfig,
) -> Selection:
    """The kept trajectories of every question, with the reason. Raises UserError for weights that give no mean."""
    check_weights(weights)
    groups: dict[tuple[tuple[str, ...], str], list[Outline]] = {((), question.id): [] for question in questions}
    for trajectory in trajectories.outlines.values():
        groups.setdefault((trajectory.learners, trajectory.question_id), []).append(trajectory)
    by_id = {question.id: question for question in questions}
    own: list[QuestionChoice] = []
    led: list[QuestionChoice] = []
    place = {question.id: number for number, question in enumerate(questions)}
    for (learners, question_id), sampled in sorted(groups.items(), key=lambda item: (item[0][0], place[item[0][1]])):
        sampled.sort(key=lambda t: (t.sample, t.key))
        question = by_id[question_id]
        if sampled and sampled[0].explored == (GOLD_SEARCHES,):
            choice = _choose_searches(question, sampled, trajectories)
            led.append(choice.model_copy(update={"learners": learners}))
            continue
        mine = rule.model_copy(update=ALONE) if learners else rule
        for roles, given, counted in _by_role(sampled, scores, weights):
            attempts = _attempts(question, given, trajectories, counted, weights, mine, roles)
            choice = _choose(question, attempts, mine)
            (led if learners else own).append(choice.model_copy(update={"learners": roles or learners}))
    if rule.balance_searches:
        choices = _balanced([*own, *led], trajectories)
        own, led = choices[: len(own)], choices[len(own) :]

    def rewards(question: str) -> dict[str, float | None]:
        sampled = groups[(), question]
        return dict(_attempts(by_id[question], sampled, trajectories, scores, weights, rule).rewards)

    merged = tuple(
        choices[0] if not choices[0].learners else _merged(choices, rewards(question))
        for question, choices in _by_question(own)
    )
    return Selection(
        origins=_origins([*own, *led], trajectories.outlines.values(), rule),
        weights=dict(weights),
        rule=rule.model_dump(mode="json"),
        questions=merged,
        roles=tuple(own) if any(choice.learners for choice in own) else (),
        curriculum=tuple(led),
    )


def _by_role(
    sampled: Sequence[Outline], scores: Scores, weights: Weights
) -> Iterator[tuple[tuple[str, ...], Sequence[Outline], Scores]]:
    """(the role that learns, the samples in which it acted or that say nothing of roles, their scores as the role's
    own) of each role that a score with a weight tells apart; where none does, once, without a role."""
    found = {at: scores[at] for one in sampled for name in weights if (at := (one.key, name)) in scores}
    apart = [score for (_, name), score in found.items() if weights[name] and score.roles]
    for role in sorted({role for score in apart for role in score.roles}):
        absent = {score.trajectory for score in apart if role not in score.roles}
        given = [one for one in sampled if one.key not in absent]
        own = {at: one.model_copy(update={"value": one.roles.get(role, one.value)}) for at, one in found.items()}
        yield (role,), given, own
    if not apart:
        yield (), sampled, scores


def _by_question(choices: Iterable[QuestionChoice]) -> Iterator[tuple[str, list[QuestionChoice]]]:
    return ((question, list(own)) for question, own in groupby(choices, lambda choice: choice.question_id))


def _merged(choices: Sequence[QuestionChoice], rewards: dict[str, float | None]) -> QuestionChoice:
    """The choices of a question's roles as one, with the trajectories' rewards."""
    kept = tuple(key for key in rewards if any(key in choice.kept for choice in choices))
    return QuestionChoice(
        question_id=choices[0].question_id,
        kept=kept,
        cause="kept" if kept else choices[0].cause,
        reason="; ".join(f"{' and '.join(choice.learners)}: {choice.reason}" for choice in choices),
        rewards=rewards,
    )


def _origins(
    choices: Sequence[QuestionChoice], trajectories: Iterable[Outline], rule: SelectConfig
) -> dict[str, tuple[int, int, int]]:
    """Counts of all, good and kept trajectories by how they were sampled. One that is good for any role is good."""
    kept = {key for choice in choices for key in choice.kept}
    least = (rule.min_reward or 0.0) + TIE
    rewards = ((key, value) for choice in choices for key, value in choice.rewards.items() if value is not None)
    good = {key for key, value in rewards if value > least}
    counts: dict[str, tuple[int, int, int]] = {}
    for one in trajectories:
        origin = f"taught by {one.teacher}" if one.teacher else "exploring" if one.explored else "free"
        origin = f"curriculum of {', '.join(one.learners)}" if one.learners else origin
        sampled, above, chosen = counts.get(origin, (0, 0, 0))
        counts[origin] = sampled + 1, above + (one.key in good), chosen + (one.key in kept)
    return counts


def select_at_random(selection: Selection, trajectories: Iterable[Ended], seed: int) -> Selection:
    """A control for a selection: of every question as many trajectories as it kept, chosen at random, whatever their
    reward, from those that ended as its rule asks for and have an answer. The choice depends on the seed and not on the
    order of `trajectories`. What is kept of a curriculum stays: it has one sample of a question."""
    keep_status = SelectConfig.model_validate(selection.rule).keep_status
    pool: dict[str, set[str]] = {}
    for trajectory in trajectories:
        if trajectory.status in keep_status and has_answer(trajectory):
            pool.setdefault(trajectory.question_id, set()).add(trajectory.key)

    def chosen(choice: QuestionChoice) -> QuestionChoice:
        if not choice.kept:
            return choice
        own = pool.get(choice.question_id, set()) & choice.rewards.keys()  # without those of the curriculum
        drawn = sorted(own, key=lambda key: content_key("control", seed, key))
        kept = tuple(drawn[: len(choice.kept)])
        reason = f"kept: {len(kept)} of {len(drawn)} well-formed trajectories, chosen at random"
        return choice.model_copy(update={"kept": kept, "candidates": (), "reason": reason})

    rule = {"control": "random", "seed": seed, "keep_status": list(keep_status)}
    roles = tuple(map(chosen, selection.roles))
    by_role = {question: choices for question, choices in _by_question(roles) if choices[0].learners}
    questions = tuple(
        _merged(by_role[choice.question_id], choice.rewards) if choice.question_id in by_role else chosen(choice)
        for choice in selection.questions
    )
    return selection.model_copy(update={"rule": rule, "origins": {}, "questions": questions, "roles": roles})


def parse_weights(text: str, option: str, named: Callable[[str], str]) -> dict[str, float]:
    """'correctness=2,faithfulness=1' as a mapping. `option`: what it was given to, for errors; `named`: a score's name
    from its text. Raises UserError."""
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, sign, value = (piece.strip() for piece in part.partition("="))
        try:
            weight = float(value)
        except ValueError:
            sign = ""
        if not sign:
            raise UserError(f"{option} {text}: expected name=number,name=number, got {part!r}")
        name = named(name)
        load_reward(name, option)
        weights[name] = weight
    check_weights(weights)
    return weights


def worst_reward(weights: Weights) -> float:
    """The least reward: 0, or -1 where a weight is below 0."""
    return -1.0 if any(weight < 0 for weight in weights.values()) else 0.0


def reward(trajectory: Ended, scores: Scores, weights: Weights) -> float | None:
    """The sum of weight times score, divided by the sum of the weights above 0: a weighted mean, less what the scores
    with weights below 0 cost, and at least `worst_reward`; None when a needed score is null or missing.

    A trajectory without an answer has the least reward, whatever it cost, unless a score gives it something.
    """
    gained = paid = 0.0
    for name, weight in weights.items():
        if not weight:
            continue
        score = scores.get((trajectory.key, name))
        if score is None or score.value is None:
            return None
        if weight > 0:
            gained += weight * score.value
        else:
            paid -= weight * score.value
    worst = worst_reward(weights)
    if not gained and not has_answer(trajectory):
        return worst
    return max((gained - paid) / sum(weight for weight in weights.values() if weight > 0), worst)


def strict_reward(
    question: Question,
    trajectory: Ended,
    scores: Scores,
    weights: Weights,
    keep_status: Collection[str],
) -> float | None:
    """The reward that selection uses (`rewards.reward.strict_value`); None where a needed score is missing."""
    needed = [name for name, weight in weights.items() if weight]
    if any((trajectory.key, name) not in scores for name in needed):
        return None
    value, worst = reward(trajectory, scores, weights), worst_reward(weights)
    return strict_value(value, needed, question, trajectory, keep_status, worst)


@dataclass(frozen=True)
class Attempts:
    """The trajectories of one question, in the order of their samples, and what they are worth."""

    trajectories: Sequence[Outline]
    whole: Mapping[str, Trajectory]
    """By key."""
    rewards: Mapping[str, float | None]
    """By key."""
    candidates: Sequence[Outline]
    values: Sequence[float]
    """The candidates' rewards."""
    scores: Scores
    lacks_scores: bool
    """Whether a trajectory is no candidate only because it has not all its scores."""
    others: str
    """How many trajectories are no candidates, by reason, in words."""
    roles: tuple[str, ...] = ()
    """The roles that learn; empty: all."""
    judge_runs: str = ""
    """How many were judged in how many runs, in words, where the number differs (`rewards.runs`)."""

    @property
    def known(self) -> list[float]:
        """The rewards of all trajectories that have one, those that did not finish among them."""
        return [value for value in self.rewards.values() if value is not None]


def _attempts(
    question: Question,
    trajectories: Sequence[Outline],
    whole: Mapping[str, Trajectory],
    scores: Scores,
    weights: Weights,
    rule: SelectConfig,
    roles: tuple[str, ...] = (),
) -> Attempts:
    rewards: dict[str, float | None] = {}
    candidates: list[Outline] = []
    values: list[float] = []
    others: Counter[str] = Counter()
    lacks_scores = False
    for trajectory in trajectories:
        is_failed = trajectory.status == "failed"
        value = None if is_failed else strict_reward(question, trajectory, scores, weights, rule.keep_status)
        rewards[trajectory.key] = value
        if trajectory.status not in rule.keep_status:
            others[trajectory.status.replace("_", " ")] += 1
        elif not has_answer(trajectory):
            others["no answer"] += 1
        elif value is None:
            lacks_scores = True
            others[f"without {' and '.join(_lacking(trajectory.key, scores, weights))}"] += 1
        else:
            candidates.append(trajectory)
            values.append(value)
    in_words = ", ".join(f"{count} {what}" for what, count in others.items())
    needed = [name for name, weight in weights.items() if weight]
    counted = Counter(runs for one in trajectories if (runs := num_runs(one.key, scores, needed)))
    by_runs = ", ".join(f"{count} in {runs} judge runs" for runs, count in sorted(counted.items()))
    return Attempts(trajectories, whole, rewards, candidates, values, scores, lacks_scores, in_words, roles, by_runs)


def num_runs(key: str, scores: Scores, names: Iterable[str]) -> int:
    """The judge runs that all of a trajectory's judged scores have, where their number may differ (`rewards.runs`);
    else 0."""
    given = (score.runs for name in names if (score := scores.get((key, name))) is not None)
    return min((len(runs) for runs in given if runs), default=0)


def _lacking(key: str, scores: Scores, weights: Weights) -> list[str]:
    """Needed scores that are null or missing."""
    needed = {name: scores.get((key, name)) for name, weight in weights.items() if weight}
    return [name for name, score in needed.items() if score is None or score.value is None]


def _choose(question: Question, attempts: Attempts, rule: SelectConfig) -> QuestionChoice:
    """Choose among a question's trajectories, or say why nothing is kept."""
    kept: list[Outline] = []
    learnt: list[Outline] = []
    weight = 1.0
    dropped = next((drop for dropping in DROPPING if (drop := dropping(attempts, rule))), None)
    if dropped is None:
        cause: Cause = "kept"
        kept, reason = _keep_best(attempts, rule)
        learnt = _learnt_from(attempts, kept, rule)
        if rule.difficulty == "failure_rate":
            weight = 1 - _success_rate(attempts.known, rule)
    else:
        cause, numbers = dropped
        reason = f"dropped: {cause_text(cause, rule)}" + (f" ({numbers})" if numbers else "")
    return QuestionChoice(
        question_id=question.id,
        kept=tuple(trajectory.key for trajectory in kept),
        cause=cause,
        reason=reason + (f"; {attempts.judge_runs}" if attempts.judge_runs else ""),
        rewards=dict(attempts.rewards),
        candidates=tuple(trajectory.key for trajectory in learnt),
        weight=weight,
    )


def _choose_searches(question: Question, sampled: Sequence[Outline], whole: Mapping[str, Trajectory]) -> QuestionChoice:
    """Choose the first sample whose led search found all gold documents, whatever came after."""
    found = {one.key: float(one.status != "failed" and _found_all(question, whole[one.key])) for one in sampled}
    kept = tuple(key for key, value in found.items() if value)[:1]
    cause: Cause = "kept" if kept else "reward_too_low"
    reason = "kept 1: it found all gold documents" if kept else "dropped: not all gold documents were found"
    return QuestionChoice(
        question_id=question.id, kept=kept, cause=cause, reason=reason, rewards={**found}, candidates=kept
    )


def _found_all(question: Question, trajectory: Trajectory) -> bool:
    found = {passage.document_id for event in trajectory.tool_calls for passage in event.passages}
    return set(question.gold_ids) <= found


def _balanced(choices: Sequence[QuestionChoice], whole: Trajectories) -> list[QuestionChoice]:
    """The choices without the surplus of those with few or many searches, among the free ones and the led searches.

    Which ones go depends on their questions alone."""
    groups: dict[tuple[tuple[str, ...], tuple[str, ...]], tuple[list[QuestionChoice], list[QuestionChoice]]] = {}
    for choice in choices:
        best = whole.outlines[choice.kept[0]] if choice.kept else None
        if best is not None and (not best.learners or best.explored == (GOLD_SEARCHES,)):
            group = groups.setdefault((best.learners, choice.learners), ([], []))
            group[len(whole[choice.kept[0]].tool_calls) > 1].append(choice)
    surplus = set()
    for few, many in groups.values():
        least = min(len(few), len(many))
        for side in (few, many) if least else ():
            side.sort(key=lambda choice: content_key("balance", choice.question_id))
            surplus |= {id(choice) for choice in side[least:]}
    dropped = {
        "kept": (),
        "candidates": (),
        "cause": "surplus",
        "reason": "dropped: rewards.select.balance_searches keeps as many questions with few searches as with many",
    }
    return [choice.model_copy(update=dropped) if id(choice) in surplus else choice for choice in choices]


# Rules that drop a question: each gives the cause and the numbers behind it, or None.

Drop = tuple[Cause, str] | None


def _no_candidate(attempts: Attempts, rule: SelectConfig) -> Drop:
    if attempts.candidates:
        return None
    if not attempts.trajectories:
        return "no_trajectory", ""
    return "missing_scores" if attempts.lacks_scores else "none_finished", attempts.others


def _reward_too_low(attempts: Attempts, rule: SelectConfig) -> Drop:
    best = max(attempts.values)
    if rule.min_reward is None or best > rule.min_reward + TIE:
        return None
    return "reward_too_low", f"best {best:.3f} of {len(attempts.values)}"


def _all_equal(attempts: Attempts, rule: SelectConfig) -> Drop:
    values = attempts.values
    if not rule.drop_all_equal or max(values) - min(values) > TIE:
        return None
    return "all_equal", f"{len(values)} times {max(values):.3f}"


def _score_too_low(attempts: Attempts, rule: SelectConfig) -> Drop:
    """A score in which no candidate is above its `rule.min_scores`."""
    low = []
    for name, least in rule.min_scores.items():
        given = (attempts.scores.get((trajectory.key, name)) for trajectory in attempts.candidates)
        values = [score.value for score in given if score is not None and score.value is not None]
        if not values or max(values) <= least + TIE:
            low.append(f"best {name} {max(values):.3f}" if values else f"no {name}")
    return ("score_too_low", ", ".join(low)) if low else None


DROPPING: tuple[Callable[[Attempts, SelectConfig], Drop], ...] = (
    _no_candidate,
    _reward_too_low,
    _all_equal,
    _score_too_low,
)
"""In this order; those after the first look at questions with candidates."""


def cause_text(cause: Cause, rule: SelectConfig) -> str:
    """The cause in words, without the numbers of one question."""
    texts: dict[Cause, str] = {
        "kept": "kept",
        "no_trajectory": "no trajectory was sampled",
        "none_finished": f"no {' or '.join(rule.keep_status).replace('_', ' ')} trajectory",
        "missing_scores": "no candidate has all its scores",
        "reward_too_low": f"best reward is not above {rule.min_reward}",
        "score_too_low": "in some score no candidate is above its rewards.select.min_scores",
        "all_equal": "all rewards are equal",
        "surplus": "more questions have as many searches (rewards.select.balance_searches)",
    }
    return texts[cause]


def _success_rate(rewards: Sequence[float], rule: SelectConfig) -> float:
    """The share of a question's rewards, at least one, that count as a success."""
    return sum(value >= rule.success - TIE for value in rewards) / len(rewards)


# What is kept of a question that no rule drops.


def _keep_best(attempts: Attempts, rule: SelectConfig) -> tuple[list[Outline], str]:
    """(the trajectories to keep, the reason in one line)."""
    best = max(attempts.values)
    pairs = zip(attempts.candidates, attempts.values, strict=True)
    tied = [trajectory for trajectory, value in pairs if value >= best - TIE]
    sign = {name: 1 if load_reward(name).is_cost else -1 for name in rule.prefer}
    tied.sort(key=lambda one: [sign[name] * _value(attempts.scores, one.key, name) for name in rule.prefer])
    different = distinct(tied, attempts.whole, rule.similarity, attempts.roles)
    kept = different[: rule.ties]
    notes = []
    if len(tied) > len(different):
        notes.append(f"{len(tied) - len(different)} the same as another")
    if len(different) > len(kept):
        notes.append(f"at most {rule.ties} kept")
    how = f"{len(tied)} tied at {best:.3f}" if len(tied) > 1 else f"best at {best:.3f}"
    detail = "; ".join(note for note in [", ".join(notes), attempts.others] if note)
    return kept, f"kept {len(kept)} of {len(attempts.trajectories)}: {how}" + (f" ({detail})" if detail else "")


def _value(scores: Scores, key: str, name: str) -> float:
    score = scores.get((key, name))
    return (score and score.value) or 0.0


def _learnt_from(attempts: Attempts, kept: Sequence[Outline], rule: SelectConfig) -> list[Outline]:
    """The candidates that count, in the order of their samples: the kept ones, and of the others those that resemble no
    better one."""
    first = {trajectory.key for trajectory in kept}
    ranked = sorted(zip(attempts.candidates, attempts.values, strict=True), key=lambda pair: -pair[1])
    others = [trajectory for trajectory, _ in ranked if trajectory.key not in first]
    counted = {
        trajectory.key for trajectory in distinct([*kept, *others], attempts.whole, rule.similarity, attempts.roles)
    }
    return [trajectory for trajectory in attempts.candidates if trajectory.key in counted]


# Which trajectories do the same: training on both would only weigh one of them twice.


def distinct(
    trajectories: Sequence[Outline],
    whole: Mapping[str, Trajectory],
    similarity: float | None,
    roles: Collection[str] = (),
) -> list[Outline]:
    """The trajectories without those whose actions are the same as an earlier one's, or as similar as that; one without
    sampled tokens stays. None: all. `whole`: by key. `roles`: those whose actions count; empty: all."""
    if similarity is None or len(trajectories) < 2:
        return list(trajectories)
    seen: list[Actions] = []
    kept: list[Outline] = []
    for trajectory in trajectories:
        actions = tuple(
            (conversation.role, _sampled(conversation))
            for conversation in whole[trajectory.key].conversations
            if not roles or conversation.role in roles
        )
        if any(resemble(actions, earlier, similarity) for earlier in seen):
            continue
        if any(ids for _, ids in actions):
            seen.append(actions)
        kept.append(trajectory)
    return kept


def _sampled(conversation: Conversation) -> tuple[int | str, ...]:
    spans = [span for span in conversation.spans if span.sampled]
    return tuple(token for span in spans for token in conversation.content[span.start : span.end])


def resemble(actions: Actions, others: Actions, similarity: float) -> bool:
    """Tell whether the Jaccard index of their sequences of `GRAM` tokens, by role, is at least `similarity`."""
    if similarity == 1 or actions == others:
        return actions == others
    mine, theirs = _grams(actions), _grams(others)
    return len(mine & theirs) >= similarity * len(mine | theirs)


def _grams(actions: Actions) -> set[tuple[str, tuple[int | str, ...]]]:
    return {
        (role, ids[at : at + GRAM]) for role, ids in actions for at in range(max(len(ids) - GRAM + 1, min(len(ids), 1)))
    }
