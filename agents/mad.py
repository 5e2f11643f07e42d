"""Multi-agent debate after Du et al. (arXiv 2305.14325, section 2).

Three agents answer alone; then each reads the others' answers and gives an updated one. The answer that most agents
end with is the system's.

Budget: agents x rounds = 6 model calls, no retrieval.

Deviations. The paper votes on numbers and choices; here answers are compared as the scorers of short answers compare
them (case, punctuation and articles do not count). A tie goes to the earliest agent, as in the authors' code. An agent
that gives no answer has no vote, unless none gives any. One that leaves out "The answer is:" is malformed and votes
with all it said. The words of the prompts are ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from pydantic import Field

from ratchet.agents.core.prompts import QUESTION, Prompt, final_answer
from ratchet.agents.core.system import Calls, SystemSpec
from ratchet.agents.core.tools import Answer, Tools
from ratchet.agents.mad_drag import FORM, debate, open_debaters
from ratchet.core.config import Section
from ratchet.core.records import Question
from ratchet.core.text import normalise_answer

PROMPTS = {
    "debater.system": Prompt(f"Answer the question. Explain your answer briefly. {FORM}"),
    "debater.user": Prompt(QUESTION),
    "reply.user": Prompt(
        f"Here is how other agents answer the question. Take it as advice and give an updated answer. {FORM}\n\n"
        f"{QUESTION}\n\n"
        "{{responses}}",
        optional=("question",),
    ),
}


class Settings(Section):
    """The number of agents and of rounds."""

    agents: int = Field(3, ge=2)
    rounds: int = Field(2, gt=0)


async def solve(question: Question, tools: Tools, settings: Settings) -> Answer:
    """Let the agents debate, and return the answer of the majority."""
    await debate(tools, open_debaters(tools, settings.agents), settings.rounds, majority_answer)
    return tools.so_far


def majority_answer(said: Mapping[str, str]) -> Answer:
    """What a round comes to."""
    answers = {name: final_answer(response) for name, response in said.items()}
    return Answer(majority(list(answers.values())), candidates=answers)


def majority(answers: Sequence[str]) -> str:
    """The answer that most agents give, in the words of the first of them."""
    votes = [answer for answer in answers if normalise_answer(answer)] or list(answers)
    counts = Counter(map(normalise_answer, votes))
    return max(votes, key=lambda answer: counts[normalise_answer(answer)])


SYSTEM = SystemSpec(
    Settings,
    solve,
    roles=("debater",),
    prompts=PROMPTS,
    calls=lambda settings: {"debater": Calls(settings.agents * settings.rounds, 0, settings.agents)},
)
