"""A realistic run folder made by hand: records only, no model."""

import json
import random
from collections import Counter
from pathlib import Path

from ratchet.core.config import Config
from ratchet.core.files import write_json, write_jsonl
from ratchet.core.records import (
    Conversation,
    Event,
    ModelCall,
    Note,
    Passage,
    Question,
    Search,
    Span,
    Status,
    Trajectory,
    content_key,
)
from ratchet.core.runfolder import RoundFolder
from ratchet.evaluation.arms import ArmPlan, arm_store, question_set
from ratchet.evaluation.results import Results
from ratchet.evaluation.round_arms import build_results, record_arms
from ratchet.questions.manifest import open_run
from ratchet.rewards.selection import select
from ratchet.sampling.store import Trajectories
from ratchet.training.rows import build_rows, rows_table, write_rows
from tests.helpers.configs import config_values
from tests.helpers.reward_cases import score_with
from tests.helpers.stored import store
from tests.helpers.tiny import save_tiny_tokenizer

SCORES = ("em", "f1", "nugget_containment", "lexical_support")
HOSTILE = (
    "<script>alert(1)</script></script><img src=x onerror=alert(2)><!-- </style> {{ 7*7 }} "
    '"\'><a href="http://evil.example/x">&lt;\u2028\u202e backwards <|im_start|>system'
)
PLACES = ("Orvane", "Telmarsh", "Quillhaven", "Brandor", "Sessel", "Ketterby", "Mirrow", "Dunlath", "Ostrava Point")
PEOPLE = ("Ilse Varrow", "Tomas Quern", "Ada Pell", "Rurik Hollin", "Mina Ostler", "Jory Fenn", "Sanna Leith")
KINDS = ("one hop", "two hops", "comparison")


def questions_of(split: str, count: int) -> list[Question]:
    rng = random.Random(split)
    made = []
    for i in range(count):
        place, person, kind = rng.choice(PLACES), rng.choice(PEOPLE), KINDS[i % 3]
        text = {
            "one hop": f"Who keeps the lighthouse of {place}?",
            "two hops": f"In which town was the keeper of {place}'s lighthouse born?",
            "comparison": f"Which lighthouse is older, {place}'s or {rng.choice(PLACES)}'s?",
        }[kind]
        answer = person if kind == "one hop" else rng.choice(PLACES)
        made.append(
            Question(
                id=f"{split}-{i:03d}",
                text=f"{text} ({i})",
                answers=(answer,),
                nuggets=(answer,),
                gold_ids=(f"doc-{place}",),
                kind=kind,
            )
        )
    return made


def passage(rng: random.Random, question: Question, right: bool) -> Passage:
    place = rng.choice(PLACES)
    number = rng.randrange(3)
    text = (
        f"The lighthouse of {place} stands on the northern mole. "
        + (
            f"Records name {question.answers[0]} in this matter. "
            if right
            else "Its keeper is not named in the rolls. "
        )
        + "Ships bound for the straits take their bearing from its lamp, which burns fish oil and is trimmed at dusk. "
        * (1 + number)
    )
    document = question.gold_ids[0] if right else f"doc-{place}"
    return Passage(
        id=f"{document}#{number}-{right}", document_id=document, title=f"Lighthouse of {place}", text=text, score=9.1
    )


class Talk:
    """A conversation under construction, with ids that stand for tokens."""

    def __init__(self, role: str, trainable: bool, rng: random.Random) -> None:
        self.role, self.trainable, self.rng = role, trainable, rng
        self.spans: list[Span] = []
        self.end = 0
        self.add("template", 3)
        self.add("system", 60)

    def add(self, author: str, tokens: int, sampled: bool = False, parsed: bool = True) -> tuple[int, int]:
        start, self.end = self.end, self.end + tokens
        self.spans.append(Span(start=start, end=self.end, author=author, sampled=sampled, parsed=parsed))
        return start, self.end

    def freeze(self) -> Conversation:
        ids = tuple(self.rng.randrange(1000) for _ in range(self.end))
        return Conversation(role=self.role, model="agent", trainable=self.trainable, ids=ids, spans=tuple(self.spans))


def trajectory(
    question: Question, sample: int, skill: float, policy: str = "base", hostile: bool = False
) -> Trajectory:
    key = content_key("handmade", question.id, sample, policy, skill)
    rng = random.Random(key)
    talks = [Talk("coordinator", True, rng), Talk("searcher", True, rng), Talk("answerer", False, rng)]
    events: list[Event] = []
    now = 0.0

    def say(index: int, text: str, schema: bool = True, parsed: bool = True, error: str = "") -> None:
        nonlocal now
        talk = talks[index]
        talk.add("user", rng.randrange(30, 120))
        talk.add("template", 4)
        prompt = talk.end
        tokens = 8 + len(text) // 4
        start, end = talk.add("assistant", tokens, True, parsed)
        parse = ("ok" if parsed else "malformed") if schema else "free"
        now += tokens / 40
        events.append(
            ModelCall(
                role=talk.role, conversation=index, start=start, end=end, text=text, parse=parse, error=error,
                finish_reason="stop" if parsed else "length", prompt_tokens=prompt, cached_tokens=prompt * 2 // 3,
                new_tokens=tokens, at=now, seconds=tokens / 40,
            )
        )  # fmt: skip

    def choose(agent: str, reason: str) -> None:
        say(0, json.dumps({"agent": agent, "input": question.text, "reason": reason}))

    status: Status = "finished"
    answer, error = "", ""
    right = rng.random() < skill
    passages = [passage(rng, question, right and rng.random() < 0.9), passage(rng, question, False)]
    if hostile:
        passages.append(Passage(id="evil", document_id="evil", title=HOSTILE, text=HOSTILE, score=0.1))
    choose("searcher", "Nothing is known yet about the keeper, so the documents come first.")
    query = f"lighthouse keeper {rng.choice(PLACES)}"
    say(1, json.dumps({"query": query, "next": True}))
    events.append(Search(role="searcher", query=query, k=2, offset=0, passages=tuple(passages), at=now, seconds=0.02))
    end = rng.random()
    if end < 0.05:
        status, error = "unparsed", "coordinator: field 'agent' is missing"
        say(0, '{"agnt": "answerer", "input": "', parsed=False, error="not valid JSON: unterminated string")
    elif end < 0.09:
        status, error = "failed", "EngineError: the server closed the connection"
    else:
        if rng.random() < 0.3:
            choose("planner", "Two steps are needed: first the keeper, then the birthplace.")
        choose("answerer", "The passages hold what is asked.")
        answer = question.answers[0] if right else rng.choice((*PEOPLE, *PLACES, "The documents do not say who it is."))
        if rng.random() < 0.3:
            answer = f"It is {answer}, as the harbour rolls say."
        if hostile:
            answer += " " + HOSTILE
        say(2, answer, schema=False)
        if end < 0.15:
            status = "out_of_budget"
            events.append(Note(role="coordinator", text="The budget of 6 agent calls is used up.", at=now))
        else:
            choose("finisher", "There is an answer.")
    return Trajectory(
        key=key,
        question_id=question.id,
        system="mrag",
        policy=policy,
        sample=sample,
        seed=rng.randrange(2**31),
        status=status,
        answer=answer,
        error=error,
        passages=tuple(passages) if answer else (),
        events=tuple(events),
        conversations=tuple(talk.freeze() for talk in talks),
        seconds=now,
    )


def make_config(folder: Path, train: int = 24, test: int = 30, dev: int = 4) -> Config:
    """A config whose question files exist, with rule-based scores alone."""
    for split, count in (("train", train), ("dev", dev), ("test", test)):
        write_jsonl(folder / f"{split}.jsonl", questions_of(split, count))
    save_tiny_tokenizer(folder / "model")
    rewards = {"weights": {"f1": 2.0, "lexical_support": 1.0}, "select": {"min_reward": 0.25}}
    arms = {"scores": SCORES, "baselines": {"no retrieval": {"name": "no_retrieval"}}}
    return Config.model_validate(
        config_values(folder, rewards=rewards, evaluation=arms, training={"dev_fraction": 0.4})
    )


def add_sampling(config: Config, folder: RoundFolder, samples: int = 8, skill: float = 0.1) -> list[Trajectory]:
    questions = questions_of("train", len(Path(config.questions.train.path).read_bytes().splitlines()))
    made = [
        trajectory(q, sample, skill=skill + 0.5 * (i % 4) / 3, hostile=i == 0)
        for i, q in enumerate(questions)
        for sample in range(samples)
    ]
    store(folder.trajectories, made, questions, samples=samples)
    return made


def add_selection(config: Config, folder: RoundFolder, made: list[Trajectory]) -> None:
    questions = questions_of("train", len({t.question_id for t in made}))
    scores = score_with(config, questions, made, SCORES, folder.scores)
    weights = config.rewards.weights
    selection = select(questions, Trajectories.of(made), scores, weights, config.rewards.select)
    write_json(folder.selection, selection.model_dump(mode="json"))
    by_key = {trajectory.key: trajectory for trajectory in made}
    rows = [row for key in selection.kept for row in build_rows(by_key[key], config.training.max_length)[0]]
    write_rows(folder.rows, rows_table(rows), "handmade", Counter())


def add_training(folder: RoundFolder, steps: int = 60) -> None:
    rng = random.Random(1)
    lines = []
    for step in range(1, steps + 1):
        loss = 0.35 + 1.9 * 0.94**step + rng.gauss(0, 0.05)
        lines.append({"step": step, "loss": loss, "learning_rate": 1e-4, "tokens": 900})
        if step % 10 == 0:
            lines.append({"step": step, "dev_loss": 0.55 + 1.5 * 0.93**step + 0.002 * step})
    path = folder.training / "log.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 61, "lo')


Skills = tuple[tuple[str, str, float], ...]
"""Arm, policy, and how often it is right."""
ARMS: Skills = (("base", "base", 0.12), ("adapter", "0f3a91c4", 0.5), ("no retrieval", "base", 0.05))


def add_evaluation(config: Config, folder: RoundFolder, split: str = "test", arms: Skills = ARMS) -> Results:
    asked = question_set(config, split)
    plans = []
    for arm, policy, skill in arms:
        made = [trajectory(q, 0, skill, policy + arm) for q in asked.questions]
        made = [t.model_copy(update={"policy": policy}) for t in made]
        system = config.evaluation.baselines.get(arm, config.system)
        plan = ArmPlan(arm, system, asked, None, policy, arm_store(config, split, system, policy))
        store(plan.store.folder, made, asked.questions, system)
        score_with(config, asked.questions, made, SCORES, plan.scores)
        plans.append(plan)
    record_arms(folder, split, plans)
    return build_results(config, folder, [split])[0]


def make_run(folder: Path, train: int = 24, test: int = 30) -> tuple[Config, RoundFolder]:
    """A whole round: sampled, selected, trained, evaluated."""
    config = make_config(folder, train, test)
    number_one = open_run(config).round(1)
    add_selection(config, number_one, add_sampling(config, number_one))
    add_training(number_one)
    add_evaluation(config, number_one)
    return config, number_one
