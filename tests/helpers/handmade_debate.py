"""A run of debates and loops made by hand: claims with labels, tools, memory, and hostile text wherever it can be."""

from pathlib import Path

from ratchet.core.config import Config
from ratchet.core.files import write_jsonl
from ratchet.core.records import Event, Passage, Question, Recall, Search, ToolCall, Trajectory, Turn, content_key
from ratchet.core.runfolder import RoundFolder
from ratchet.evaluation.arms import ArmPlan, arm_store, question_set
from ratchet.evaluation.round_arms import build_results, record_arms
from ratchet.questions.labels import FEVER
from ratchet.questions.manifest import open_run
from tests.helpers.configs import SPLITS, config_values
from tests.helpers.handmade_run import HOSTILE, PEOPLE, PLACES
from tests.helpers.stored import store

NAMES = [label.name for label in FEVER]


def claims(count: int = 9) -> list[Question]:
    return [
        Question(
            id=f"claim-{i}",
            text=f"{PEOPLE[i % 7]} kept the lighthouse of {PLACES[i % 9]}.",
            form="claim",
            labels=FEVER,
            label=NAMES[i % 3],
        )
        for i in range(count)
    ]


def page(name: str, text: str = "", title: str = "") -> Passage:
    return Passage(id=name, document_id=name, title=title or f"Rolls of {name}", text=text or f"What {name} says.")


def debate(question: Question, arm: str, right: bool) -> Trajectory:
    """Two rounds of two agents with different tools, then a judge."""
    old, new, found = page("rolls"), page("harbour"), page("https://news.example/1", HOSTILE, HOSTILE)
    events: list[Event] = [
        Search(role="rag", query="keeper", k=1, offset=0, passages=(old,), at=0.1, seconds=0.1),
        ToolCall(
            role="search",
            source="web",
            tool="search",
            arguments={"query": HOSTILE},
            passages=(found,),
            at=0.2,
            seconds=0.1,
        ),
        Search(role="rag", source="wikipedia", query="harbour", k=1, offset=0, passages=(new,), at=0.5, seconds=0.1),
    ]
    label = question.label if right else next(name for name in NAMES if name != question.label)
    turns = (
        Turn(round=1, speaker="rag", query="keeper", passages=("rolls",), said="The rolls name another.",
             verdict="REFUTES", scores={"faithfulness": 0.25, "relevance": None}),
        Turn(round=1, speaker="search", query=HOSTILE, passages=(found.id,), said=HOSTILE, verdict="SUPPORTS"),
        Turn(round=2, speaker="rag", query="harbour", passages=("harbour",), said="The harbour book agrees.",
             verdict=label or "", scores={"faithfulness": 0.75, "relevance": 0.9}),
        Turn(round=2, speaker="search", said="I stay with it."),
        Turn(round=2, speaker="judge", said="The harbour book decides.", verdict=label or ""),
    )  # fmt: skip
    return made(question, arm, "tool_mad", label or "", events, turns, "judge after round 2")


def loop(question: Question, arm: str) -> Trajectory:
    """One executor with a memory and a tool that refuses."""
    events: list[Event] = [
        Recall(role="executor", entities=("Orvane", HOSTILE), passages=(page("remembered"),), at=0, seconds=0.01),
        ToolCall(
            role="executor", source="web", tool="fetch", arguments={"id": "x"}, error=HOSTILE, at=0.1, seconds=0.1
        ),
        ToolCall(role="executor", source="web", tool="count", arguments={}, text=HOSTILE, at=0.2, seconds=0.1),
    ]
    turns = tuple(
        Turn(round=i, speaker="executor", query=f"fetch {i}", passages=("remembered",), said=f"Thought {i}.")
        for i in range(1, 4)
    )
    return made(question, arm, "mermaid", "UNCERTAIN", events, turns, "budget of 3 steps")


def made(
    question: Question, arm: str, system: str, answer: str, events: list[Event], turns: tuple[Turn, ...], why: str
) -> Trajectory:
    return Trajectory(
        key=content_key("debate", question.id, arm),
        question_id=question.id,
        system=system,
        policy="base",
        sample=0,
        seed=0,
        status="finished",
        answer=answer,
        explanation=f"Because of the books. {HOSTILE}",
        passages=(page("harbour"),),
        turns=turns,
        stopped=why,
        events=tuple(events),
        seconds=1.0,
    )


def make_debates(folder: Path) -> tuple[Config, RoundFolder]:
    """Debates as the base arm, loops as a baseline, on a split and on a benchmark beside it."""
    for split in SPLITS:
        write_jsonl(folder / f"{split}.jsonl", claims())
    values = config_values(
        folder,
        models={"agent": {"path": "models/smollm2-135m-instruct"}},
        system={"name": "tool_mad"},
        rewards={"weights": {"accuracy": 1.0}},
        evaluation={
            "baselines": {"loop": {"name": "mermaid"}},
            "benchmarks": {"beside": {"path": str(folder / "test.jsonl")}},
        },
    )
    config = Config.model_validate(values)
    number_one = open_run(config).round(1)
    for name in ("test", "beside"):
        arms = {
            "base": [debate(question, f"base {name}", i % 4 > 0) for i, question in enumerate(claims())],
            "loop": [loop(question, f"loop {name}") for question in claims()],
        }
        plans = []
        for arm, trajectories in arms.items():
            system = config.evaluation.baselines.get(arm, config.system)
            where = arm_store(config, name, system, "base")
            store(where.folder, trajectories, claims(), system)
            plans.append(ArmPlan(arm, system, question_set(config, name), None, "base", where))
        record_arms(number_one, name, plans)
    build_results(config, number_one, ["test", "beside"])
    return config, number_one
