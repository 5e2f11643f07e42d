"""Multi-agent debate after Liang et al. (EMNLP 2024, arXiv 2305.19118): "tit for tat", with a moderator who may end it.

In each round the affirmative side speaks, the negative side answers, and the moderator, who has heard both in every
round so far, rules whether one answer is to be preferred. If so, that answer ends the debate; if not, after the last
round a judge names the answers that were proposed and then picks one. Each role has one conversation, which grows.
Every side reads what the other said last.

Budget, ended by the moderator in round r of at most `rounds` (3): 3 r model calls; where no round ends it, 3 rounds + 2
of the judge: 3, 6, 9 or 11. No retrieval.

Paper against published code. The paper's judge reads the whole debate, which is the default. The code's reads what both
sides said in the first round: `judge_reads: first`. The code asks for a base answer before the debate in translation
only, so not here.

Deviations. The moderator and the judge give reasons and then a label alone on the last line, like everybody else here;
the moderator may write NO PREFERENCE in its place. In the code both write JSON, which small models seldom manage, and
the moderator's also names a side, which nothing reads. A ruling without a label prefers nothing, where the code
crashes; a judge's is unparsed. What a side says without a label is malformed, and the debate goes on with that text.
The words of the prompts are ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from ratchet.agents.core.labels import VERDICT, Verdict, ask_verdict, labels_of, require_label, unanimous_verdict
from ratchet.agents.core.prompts import Prompt, quoted, speakers_text
from ratchet.agents.core.system import Calls, SystemSpec
from ratchet.agents.core.task import labels_text
from ratchet.agents.core.tools import Answer, Tools
from ratchet.core.config import Section
from ratchet.core.records import Label, Question
from ratchet.inference.chat import Dialogue

AFFIRMATIVE, NEGATIVE = SIDES = ("affirmative", "negative")
ROLES = (*SIDES, "moderator", "judge")

LEVELS = (
    "Look for agreement: in the end both sides accept every single point.",
    "Disagree in most points; agree at most in small ones.",
    "You need not agree with the other side: what counts is the right answer.",
    "Disagree with the other side in every single point.",
)
"""The paper's levels of "tit for tat", 0 to 3."""
CHAIR = f"You moderate a debate of two sides and judge which answer is right. {VERDICT}"
OTHER_SIDE = "{{task}}\n\nThe other side says:\n{{other_answer}}\n\n"
PROMPTS = {
    "debater.system": Prompt(
        "You take part in a debate, on the {{side}} side. {{level}} Be brief. " + VERDICT, optional=("side", "level")
    ),
    "opening.user": Prompt("{{task}}\n\nYou begin. Give your reasons and your answer."),
    "objection.user": Prompt(OTHER_SIDE + "You disagree. Give your reasons and your own answer.", optional=("task",)),
    "reply.user": Prompt(OTHER_SIDE + "Do you agree? Give your reasons and your answer.", optional=("task",)),
    "moderator.system": Prompt(CHAIR),
    "moderator.user": Prompt("{{task}}\n\n{{debate}}\n\nIs one answer clearly right? Give your reasons."),
    "judge.system": Prompt(CHAIR),
    "judge.user": Prompt("{{task}}\n\n{{debate}}\n\nWhich answers were proposed? Name them, without reasons."),
    "judge_decision.user": Prompt("Decide which answer is right. Give your reasons."),
}
NO_PREFERENCE = Label(name="NO PREFERENCE", meaning="neither answer is clearly better, and the debate goes on")

Round = dict[str, Verdict]
"""The verdict of each side."""


class Settings(Section):
    """The rounds, how much the sides disagree, and what the judge reads."""

    rounds: int = Field(3, gt=0)
    """Maximum number of rounds."""
    level: int = Field(2, ge=0, le=3)
    """Level of disagreement that the sides are asked for: 0 none, 3 in everything."""
    judge_reads: Literal["all", "first"] = "all"
    """The whole debate, as in the paper, or its first round, as in the published code."""


async def solve(question: Question, tools: Tools, settings: Settings) -> Answer:
    """Let two sides debate until the moderator or, after the last round, the judge decides."""
    labels = labels_of(question)
    rulings = (*labels, NO_PREFERENCE)
    level = LEVELS[settings.level]
    sides = {side: tools.dialogue(side, tools.prompt("debater.system", side=side, level=level)) for side in SIDES}
    moderator = tools.dialogue("moderator", tools.prompt("moderator.system", labels=labels_text(rulings)))
    rounds: list[Round] = []
    for number in range(1, settings.rounds + 1):
        said = await play_round(tools, sides, rounds[-1] if rounds else {}, labels)
        rounds.append(said)
        for side, verdict in said.items():
            tools.turn(number, side, verdict.text, verdict.label)
        tools.so_far = unanimous_verdict(said)
        message = tools.prompt("moderator.user", debate=round_text(said))
        ruling = await ask_verdict(tools, moderator, message, rulings)
        tools.turn(number, "moderator", ruling.text, ruling.label)
        if ruling.label not in ("", NO_PREFERENCE.name):
            return make_answer(ruling, said, f"the moderator decided in round {number}")
    judged = rounds if settings.judge_reads == "all" else rounds[:1]
    judge, message = tools.begin("judge", debate="\n\n".join(map(round_text, judged)))
    await tools.ask(judge, message)
    final = await ask_verdict(tools, judge, tools.prompt("judge_decision.user"), labels)
    tools.turn(settings.rounds, "judge", final.text, final.label)
    why = f"no preference after {settings.rounds} round(s): the judge decided"
    return require_label(tools, make_answer(final, judged[-1], why), "judge")


async def play_round(tools: Tools, sides: Mapping[str, Dialogue], last: Round, labels: Sequence[Label]) -> Round:
    """The affirmative side speaks, having read what was said in the last round; the negative side answers it."""
    message = tools.prompt("opening.user")
    if last:
        message = tools.prompt("reply.user", other_answer=quoted(last[NEGATIVE].text))
    first = await ask_verdict(tools, sides[AFFIRMATIVE], message, labels)
    slot = "reply.user" if last else "objection.user"
    message = tools.prompt(slot, other_answer=quoted(first.text))
    return {AFFIRMATIVE: first, NEGATIVE: await ask_verdict(tools, sides[NEGATIVE], message, labels)}


def make_answer(ruling: Verdict, said: Round, why: str) -> Answer:
    """The answer that a ruling gives."""
    candidates = {side: verdict.label for side, verdict in said.items()}
    return Answer(ruling.label, explanation=ruling.reasons, candidates=candidates, stopped=why)


def round_text(said: Round) -> str:
    """The words of both sides in a round."""
    return speakers_text({f"{side.capitalize()} side": verdict.text for side, verdict in said.items()})


SYSTEM = SystemSpec(
    Settings,
    solve,
    roles=ROLES,
    prompts=PROMPTS,
    gives_verdict=True,
    calls=lambda settings: {
        **dict.fromkeys(("affirmative", "negative", "moderator"), Calls((1 + settings.rounds) / 2, 0, 1)),
        "judge": Calls(),
    },
)
