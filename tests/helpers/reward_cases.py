"""What the tests of rewards share: records, a config on a temporary folder, and a judge played by a script."""

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ratchet.core.config import Config, RewardsConfig, parse
from ratchet.core.files import write_jsonl
from ratchet.core.records import Conversation, Passage, Question, Score, Span, Status, Trajectory, content_key
from ratchet.core.tasks import run_outside_event_loop
from ratchet.core.text import normalise_answer
from ratchet.inference.completion import Message, SamplingParams
from ratchet.inference.engine import Engine
from ratchet.inference.scripted import ScriptedEngine
from ratchet.retrieval.encoders.limits import Embed
from ratchet.rewards.inputs import Inputs, ScoreJudge
from ratchet.rewards.judge import CallLog, Judge
from ratchet.rewards.nuggets import NuggetStore
from ratchet.rewards.prompts import builtin_prompts, judge_prompts
from ratchet.rewards.reward import Judged, Rule, Settings, load_reward
from ratchet.rewards.scoring import Scorer
from ratchet.sampling.store import Trajectories, outline
from tests.helpers.configs import SPLITS, config_values
from tests.helpers.tiny import tiny_format

Material = dict[str, Any]


def trajectory(
    sample: int = 0,
    answer: str = "Velm lies by the sea.",
    question: str = "q1",
    status: Status = "finished",
    documents: Sequence[str] = (),
    sampled: Sequence[int] = (),
    key: str = "",
) -> Trajectory:
    """One with a conversation of a three-token prompt and the sampled ids, if any are given."""
    spans = (Span(start=0, end=3, author="user"), Span(start=3, end=3 + len(sampled), author="assistant", sampled=True))
    conversation = Conversation(role="searcher", model="agent", trainable=True, ids=(7, 8, 9, *sampled), spans=spans)
    return Trajectory(
        key=key or content_key(question, sample),
        question_id=question,
        system="mrag",
        policy="base",
        sample=sample,
        seed=sample,
        status=status,
        answer=answer,
        passages=tuple(Passage(id=f"p{i}", document_id=f"d{i}", text=text) for i, text in enumerate(documents)),
        conversations=(conversation,) if sampled else (),
    )


def make_config(folder: Path, questions: Sequence[Question], **sections: Any) -> Config:
    """A config whose run folder and question file are in `folder`; sections override the defaults."""
    for split in SPLITS:
        write_jsonl(folder / f"{split}.jsonl", questions)
    models = {"agent": {"path": "tiny"}, "judge": {"path": "tiny-judge", "concurrency": 4}}
    own: dict[str, Any] = {"models": models, "sampling": {"samples": 2}, "rewards": {"runs": 2}}
    return parse(Config, config_values(folder, **{**own, **sections}), "the test's config")


def scorer_of(config: Config) -> Scorer:
    """What scores under a config."""
    return Scorer(config)


def score_with(
    config: Config,
    questions: Sequence[Question],
    trajectories: Sequence[Trajectory],
    names: Sequence[str],
    folder: Path,
) -> dict[tuple[str, str], Score]:
    """The scores under a config, stored in a folder."""

    def score() -> dict[tuple[str, str], Score]:
        with scorer_of(config) as scorer:
            return scorer.score(questions, Trajectories.of(trajectories), names, folder)

    return run_outside_event_loop(score)  # a browser's test has a loop in its thread


def settings_of(config: Config, name: str, fingerprint: str) -> Settings:
    """What a judged score depends on under a config."""
    loaded = load_reward(name)
    assert isinstance(loaded, Judged)
    return scorer_of(config).judge_settings(loaded, fingerprint)


def no_vectors(texts: Sequence[str]) -> Any:
    raise AssertionError("nothing is to be embedded")


def rule_score(name: str, question: Question, made: Trajectory, embed: Embed = no_vectors) -> Score:
    """A score by a rule."""
    loaded = load_reward(name)
    assert isinstance(loaded, Rule)
    given = Inputs(normalise=normalise_answer, embed=embed)
    fixed = loaded.fixed_score(question, outline(made))
    return fixed or asyncio.run(loaded.apply(question, outline(made), {made.key: made}, given))


def judge_it(
    folder: Path,
    engine: Engine,
    name: str,
    question: Question,
    made: Trajectory,
    known: Score | None = None,
    **settings: Any,
) -> Score:
    """What a judged reward's `score` gives, of two runs by default. `known`: the trajectory's faithfulness."""
    reward = load_reward(name)
    assert isinstance(reward, Judged)
    before = {} if known is None else {known.name: known}

    async def run() -> Score:
        judge = Judge(engine, RewardsConfig(**{"runs": 2, **settings}), seed=0, concurrency=2)
        with (
            CallLog(folder / "calls.jsonl", set()) as log,
            NuggetStore(folder / "nuggets", judge, builtin_prompts(), "t") as store,
        ):
            asker = ScoreJudge(
                normalise=normalise_answer,
                embed=no_vectors,
                judge=judge,
                log=log,
                prompts={**reward.prompts, **judge_prompts(judge.settings)},
                nuggets=store,
                scores=before,
                question=question,
                owner=made.key,
                name=name,
                runs=range(judge.settings.runs.most),
            )
            score = asker.finish(await reward.apply(question, outline(made), {made.key: made}, asker))
        await engine.close()
        return score

    return asyncio.run(run())


def material(messages: Sequence[Message]) -> Material:
    """The JSON object that a judge's prompt ends with."""
    text = messages[-1]["content"]
    return dict(json.loads(text[text.rindex("\n\n{") :]))


def facts(text: str) -> list[str]:
    return [fact.strip() for fact in text.split(".") if fact.strip()]


def aspect(text: str) -> Material:
    return {"aspect": text, "explanation": "it is asked", "evidence": text}


def judge_reply(given: Material) -> str:
    """A judge that takes sentences for facts: right when stated (2), else unanswered (0); relevant where one is stated
    (2), else not (-1); supported when a document or the expected output holds the sentence (1), else not (-1)."""
    if "aspect" in given:
        stated = given["aspect"]["aspect"] in given["generated_output"]
        return json.dumps({"score": 2 if stated else 0, "rationale": "as stated"})
    if "aspects" in given:
        each = [json.loads(judge_reply({**given, "aspect": one})) for one in given["aspects"]]
        return json.dumps({"scores_list": [{"id": number, **one} for number, one in enumerate(each, 1)]})
    if "answer_aspects" in given:
        source = given.get("expected_output") or " ".join(document["text"] for document in given["context"])
        scores = [(claim["id"], 1 if claim["aspect"] in source else -1) for claim in given["answer_aspects"]]
        return json.dumps({"scores_list": [{"id": i, "score": score, "rationale": ""} for i, score in scores]})
    if "generated_output" in given:
        right = any(fact in given["generated_output"] for fact in facts(given["expected_output"]))
        return json.dumps({"score": 2 if right else -1, "rationale": "as stated"})
    if "expected_output" in given:
        return json.dumps({"expected_output_aspects": [aspect(fact) for fact in facts(given["expected_output"])]})
    claims = [{"id": i, **aspect(fact)} for i, fact in enumerate(facts(given["answer"]), 1)]
    return json.dumps({"answer_aspects": claims})


def scripted_judge(
    reply: Callable[[Material], str] = judge_reply, fingerprint: str = "judge-a", max_context: int = 32_000
) -> ScriptedEngine:
    def answer(prompt: str, params: SamplingParams, messages: Sequence[Message]) -> str:
        return reply(material(messages))

    return ScriptedEngine(tiny_format(), answer, max_context=max_context, fingerprint=fingerprint)


def asked(engine: ScriptedEngine) -> list[tuple[str, int]]:
    """What was asked, in order: prompt and seed of each call."""
    return [(call.messages[-1]["content"], call.params.seed) for call in engine.calls]
