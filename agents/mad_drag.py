"""Multi-agent debate as DRAG scores it (its baseline "MAD"; arXiv 2505.18581, and the authors' published code).

Two agents answer from what they know, then twice read each other's last response and answer again, each in one
dialogue that grows. After every round a moderator, who remembers no earlier round, reads both responses and writes the
answer; the last round's is the system's. `debate` and `moderate` also play DRAG's answer stage and, without a
moderator, MAD (Du).

Budget: rounds x (agents + 1) = 9 model calls, no retrieval.

Deviations. No agent reads what a moderator says, so the moderators of all rounds speak at once at the end: the same
calls, in less time. The published code asks for "The answer is:" and never looks whether it is there; here a response
without it is counted as malformed, and the debate goes on with its text. The words of the prompts are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import Field

from ratchet.agents.core.output import Malformed
from ratchet.agents.core.prompts import MARK, QUESTION, Prompt, final_answer, speakers_text, unanimous
from ratchet.agents.core.system import Calls, SystemSpec
from ratchet.agents.core.tools import Answer, Tools
from ratchet.core.config import Section
from ratchet.core.records import Passage, Question
from ratchet.inference.chat import Dialogue

FORM = f'End with "{MARK}" and then the answer, in as few words as possible.'
MODERATOR = (
    "You moderate a debate about a question. Decide from what the debaters say which answer is right. "
    "Write that answer alone, in as few words as possible."
)
PROMPTS = {
    "debater.system": Prompt(f"Answer the question from what you know. {FORM}"),
    "debater.user": Prompt(QUESTION),
    "reply.user": Prompt(
        "Here is what the others say; they may be wrong. If you disagree, give your reasons and your answer; otherwise "
        f"revise your last answer. {FORM}\n\n{QUESTION}\n\n"
        "{{responses}}",
        optional=("question",),
    ),
    "moderator.system": Prompt(MODERATOR),
    "moderator.user": Prompt(QUESTION + "\n\n{{responses}}"),
}


class Settings(Section):
    """The number of agents and of rounds."""

    agents: int = Field(2, ge=2)
    rounds: int = Field(3, gt=0)


@dataclass(frozen=True)
class Debater:
    """An agent of the debate and its conversation."""

    name: str
    """By which the others and the moderator know it."""
    dialogue: Dialogue
    first_message: str
    """What it is given in the first round."""


async def solve(question: Question, tools: Tools, settings: Settings) -> Answer:
    """Let the agents debate, and return the last moderator's answer."""
    rounds = await debate(tools, open_debaters(tools, settings.agents), settings.rounds, unanimous_answer)
    return replace(tools.so_far, text=await moderate(tools, rounds))


def open_debaters(tools: Tools, agents: int) -> list[Debater]:
    """So many debaters, who all begin alike."""
    return [Debater(f"Agent {n + 1}", *tools.begin("debater")) for n in range(agents)]


def unanimous_answer(said: Mapping[str, str], passages: tuple[Passage, ...] = ()) -> Answer:
    """What a round comes to without a moderator: the answer that all debaters give, or none."""
    candidates = {name: final_answer(response) for name, response in said.items()}
    return Answer(unanimous(candidates.values()), passages, candidates=candidates)


async def debate(
    tools: Tools,
    debaters: Sequence[Debater],
    rounds: int,
    so_far: Callable[[dict[str, str]], Answer],
) -> list[dict[str, str]]:
    """What each debater said, by its name, round by round. In a round all speak at once, having read the last one.

    `so_far` makes of each round the answer in hand.
    """
    said: list[dict[str, str]] = []
    for _ in range(rounds):
        messages = [
            tools.prompt("reply.user", responses=responses_text(said[-1], debater.name))
            if said
            else debater.first_message
            for debater in debaters
        ]
        responses = await tools.gather(
            *(tools.read(d.dialogue, m, read_response, str) for d, m in zip(debaters, messages, strict=True))
        )
        said.append({debater.name: response for debater, response in zip(debaters, responses, strict=True)})
        tools.so_far = so_far(said[-1])
    return said


async def moderate(tools: Tools, rounds: Sequence[dict[str, str]], **shown: str) -> str:
    """The answer of the last round's moderator. Each round has one of its own, who sees that round and `shown`."""
    begun = [tools.begin("moderator", responses=responses_text(said), **shown) for said in rounds]
    answers = await tools.gather(*(tools.ask(dialogue, text) for dialogue, text in begun))
    return final_answer(answers[-1])


def responses_text(said: dict[str, str], reader: str = "") -> str:
    """The responses of a round, less the reader's own."""
    return speakers_text({name: response for name, response in said.items() if name != reader})


def read_response(text: str) -> str:
    """The whole response, which must state its answer."""
    if MARK not in text or not final_answer(text):
        raise Malformed(f'"{MARK}" is missing, or nothing follows it')
    return text


SYSTEM = SystemSpec(
    Settings,
    solve,
    roles=("debater", "moderator"),
    prompts=PROMPTS,
    calls=lambda settings: {
        "debater": Calls(settings.agents * settings.rounds, 0, settings.agents),
        "moderator": Calls(settings.rounds),
    },
)
