"""What judging costs: prompts that share their beginning, requests for several replies."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from ratchet.core.config import ModelConfig
from ratchet.core.records import Question, Score, Trajectory
from ratchet.inference.http.chat_api import ChatApiEngine
from ratchet.inference.scripted import ScriptedEngine
from ratchet.rewards import scoring
from ratchet.rewards.selection import select
from ratchet.rewards.summary import scores_lines
from ratchet.sampling.store import Trajectories
from tests.helpers.closed_service import KEY, closed_service, refusal
from tests.helpers.reward_cases import judge_it, make_config, material, score_with, scripted_judge, trajectory

BLOCK = 16
"""Tokens of a block of a prefix cache, as vLLM's and the in-process engine's."""
FACTS = [f"Harbour {number} was opened by Ada Torrin in {1200 + number}" for number in range(6)]
QUESTIONS = [Question(id=f"q{i}", text=f"Who built harbour {i}?", reference=". ".join(FACTS)) for i in range(3)]
TRAJECTORIES = [
    trajectory(sample, f"{FACTS[sample]}. {FACTS[-1]}.", question.id, documents=[f"{FACTS[sample]}. " * 5])
    for question in QUESTIONS
    for sample in range(3)
]


def uncached_tokens(prompts: Iterable[Sequence[int]], max_blocks: int) -> list[int]:
    """By prompt, the tokens that are not in a prefix cache of so many blocks, the least recently used dropped."""
    cache: OrderedDict[tuple[int, ...], None] = OrderedDict()
    counts = []
    for prompt in prompts:
        ends = range(BLOCK, len(prompt), BLOCK)
        blocks = [tuple(prompt[:end]) for end in ends]
        found = next((at for at, block in enumerate(blocks) if block not in cache), len(blocks))
        counts.append(len(prompt) - found * BLOCK)
        for block in blocks:
            cache[block] = None
            cache.move_to_end(block)
        while len(cache) > max_blocks:
            cache.popitem(last=False)
    return counts


@pytest.mark.slow
def test_calls_about_an_answer_compute_the_prompt_that_they_share_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = scripted_judge()
    monkeypatch.setattr(scoring, "open_engines", lambda *_: {"judge": engine})
    config = make_config(tmp_path, QUESTIONS, rewards={"runs": 5})
    for name in ("correctness", "faithfulness"):
        score_with(config, QUESTIONS, TRAJECTORIES, [name], tmp_path / "scores")
    prompts = [call.prompt for call in engine.calls]
    small = uncached_tokens(prompts, 4 * max(map(len, prompts)) // BLOCK)
    assert sum(small) < 1.1 * sum(uncached_tokens(prompts, 10**9)), "calls that share a prompt follow each other"

    by_kind: dict[str, list[tuple[int, int]]] = {}
    for call, left in zip(engine.calls, small, strict=True):
        given = material(call.messages)
        kind = next(name for name in ("aspect", "answer_aspects", "answer", "expected_output") if name in given)
        by_kind.setdefault(kind, []).append((left, len(call.prompt)))
    shares = {
        kind: sum(left for left, _ in counts) / sum(all_ for _, all_ in counts) for kind, counts in by_kind.items()
    }
    assert len(by_kind["aspect"]) == len(TRAJECTORIES) * len(FACTS) * 5
    limits = {"aspect": 0.05, "answer": 0.1, "answer_aspects": 0.15, "expected_output": 0.2}
    assert all(shares[kind] < limit for kind, limit in limits.items()), shares


@pytest.mark.server
@pytest.mark.parametrize("takes_several", [True, False])
def test_runs_of_one_prompt_are_one_request_where_a_service_takes_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes_several: bool
) -> None:
    monkeypatch.setenv("LOCAL_KEY", KEY)
    with closed_service() as service:
        service.say = lambda body: '{"rationale": "as stated", "score": 2}'
        if not takes_several:
            monkeypatch.setattr(
                "tests.helpers.closed_service.refused_request",
                lambda body: refusal("n must be 1", param="n") if body.get("n", 1) > 1 else None,
            )
        values = {"path": "gpt-4o-mini", "engine": "chat-api", "url": service.url, "api_key_env": "LOCAL_KEY"}
        engine = ChatApiEngine(ModelConfig.model_validate(values))
        score = judge_it(tmp_path, engine, "relevance", QUESTIONS[0], TRAJECTORIES[0], runs=3)
        assert score.value == 1.0 and len(score.verdicts) == 3
        assert [body.get("n", 1) for body in service.taken] == ([3] if takes_several else [1, 1, 1])


@pytest.mark.slow
def test_equal_answers_with_equal_documents_are_judged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    question, answer = QUESTIONS[0], f"{FACTS[0]}. {FACTS[1]}."
    made = [
        trajectory(0, answer, "q0", documents=[FACTS[0]]),
        trajectory(1, answer, "q0", documents=[FACTS[0]]),
        trajectory(2, answer, "q0", documents=[FACTS[1]]),
        trajectory(3, f"{FACTS[0]}.", "q0", documents=[FACTS[0]]),
        trajectory(4, answer, "q0", "failed"),
    ]
    names = ["correctness", "faithfulness", "precision"]
    config = make_config(tmp_path, [question], rewards={"runs": 2, "weights": dict.fromkeys(names, 1)})

    def score(folder: str, given: Sequence[Trajectory], engine: ScriptedEngine) -> dict[tuple[str, str], Score]:
        monkeypatch.setattr(scoring, "open_engines", lambda *_: {"judge": engine})
        return score_with(config, [question], given, names, tmp_path / folder)

    engine, alone = scripted_judge(), scripted_judge()
    first = score("scores", made[:1], engine)
    scores = score("scores", made, engine)
    assert {at: scores[at] for at in first} == first, "what is stored stays"
    equal = {(one.sample, name) for one in made for name in names if scores[one.key, name].equal_to}
    assert equal == {(1, name) for name in names} | {(2, "correctness"), (2, "precision")}
    assert {score.equal_to for score in scores.values()} == {"", made[0].key}
    apart = [score(f"alone-{one.sample}", [one], alone) for one in made]
    values = {at: value.value for one in apart for at, value in one.items()}
    assert {at: value.value for at, value in scores.items()} == values
    assert (len(engine.calls), len(alone.calls)) == (42, 72)
    assert score("scores", made, scripted_judge()) == scores, "each sample has its own record"
    (line,) = [line for line in scores_lines(names, scores, "judge") if "equal" in line]
    assert line == "answers judged with an equal one: correctness 2, faithfulness 1, precision 2"
    assert select([question], Trajectories.of(made), scores, config.rewards.weights, config.rewards.select).kept
