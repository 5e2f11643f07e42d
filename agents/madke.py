"""MADKE: debate over a fixed pool of evidence (Wang et al. 2025, "Learning to Break", arXiv 2312.04854).

The pool is retrieved once, for the question itself. In each round every debater first chooses at most three pieces of
the pool, or none, then answers; from round 2 on it also reads its own last answer and the others'. A judge says whether
all agree, which ends the debate. A summariser, in the end, draws the answer from the last round's.

Budget, for r rounds played of at most `rounds` (3): agents (2) x 2 r calls of the debaters, r of the judge, 1 of the
summariser: 6, 11 or 16 model calls; one retrieval for each source of the pool. Where the pool is empty nothing is
chosen, so agents x r calls less.

Deviations and named values
- The published code's pool is ten pieces of Wikipedia and five of a web search: `pool: {index: 10, web: 5}`, with a
  source `web`. The default has the ten of the index and needs no network.
- All debaters of a round speak at once, having read the last round. In the published code each reads what those before
  it said in the same round.
- As in the code, every call is a conversation of its own: what a debater knows of former rounds is in its prompt.
- A source that gives no answer leaves its part of the pool empty, and the debaters are told so; where none gives one,
  the trajectory failed.
- A choice that is not in its form is malformed; the pieces that it names last are taken, as in the code, or none. A
  judge's word that cannot be read is no agreement. A summary that comes to no label is unparsed.

A selector is a debater that chooses; the role is one of its own so that a config can give it its own examples. The
words of the prompts are ours.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from ratchet.agents.core.labels import (
    VERDICT,
    Verdict,
    ask_verdict,
    labels_of,
    read_verdict,
    require_label,
    unanimous_verdict,
)
from ratchet.agents.core.output import Malformed
from ratchet.agents.core.prompts import DATA, Prompt, documents_text, quoted, speakers_text, unique
from ratchet.agents.core.system import Calls, SystemSpec
from ratchet.agents.core.task import labels_text, task_with_options
from ratchet.agents.core.tools import Answer, Tools
from ratchet.core.config import Section
from ratchet.core.records import Label, Passage, Question

EVIDENCE = f"Evidence {DATA}:\n" + "{{documents}}\n\n{{task}}"
OWN_ANSWER = "Your last answer:\n{{own_answer?}}"
PROMPTS = {
    "selector.system": Prompt(
        "Choose the pieces of evidence that help most, at most {{most}}. End with their numbers in brackets, alone on "
        "the last line, such as [2] [5]; or with [none].",
        optional=("most",),
    ),
    "selector.user": Prompt(f"{EVIDENCE}\n\n{OWN_ANSWER}", optional=("own_answer",)),
    "debater.system": Prompt(
        "You debate with other agents. Keep your answer where you are sure of it, and change it where you were wrong. "
        f"Give your reasons briefly. {VERDICT}"
    ),
    "debater.user": Prompt(EVIDENCE + "\n\n{{other_answers?}}\n\n" + OWN_ANSWER, optional=("own_answer",)),
    "judge.system": Prompt(f"Do all agents give the same answer? {VERDICT}"),
    "judge.user": Prompt("{{task}}\n\n{{answers}}"),
    "summariser.system": Prompt(
        f"Sum up what the agents say, in a few sentences, and give the final answer. Add nothing of your own. {VERDICT}"
    ),
    "summariser.user": Prompt("{{task}}\n\n{{answers}}"),
}
AGREED = (Label(name="Yes", meaning="they all give the same answer"), Label(name="No", meaning="their answers differ"))
SAME = re.compile(
    r"(?:^|\. )[\s*_]*(?:yes\W+)?(?!.*\b(?:not(?! (?:enough|supported))|nothing|little)\b)"
    r"(?:they all|all|both|the)(?: of)?(?: the| these)?(?: \w+)?(?: agents| debaters)?"
    r" (?:agree|(?:give|have|share|gave|came to) the same \w+)"
    r"(?:\W*|\s*(?::|\bthat\b|\bon\b|\()[^.?;]*\W*)$",
    re.IGNORECASE,
)
"""A judge's last sentence without Yes: they agree."""
BRACKETS = re.compile(r"\[([^\[\]]*)\]")


class Settings(Section):
    """The agents, the rounds, and the pool of evidence."""

    agents: int = Field(2, ge=2)
    """Number of debaters."""
    rounds: int = Field(3, gt=0)
    """Maximum number of rounds."""
    pool: dict[str, Annotated[int, Field(gt=0)]] = Field({"index": 10}, min_length=1)
    """Number of pieces from each source: "index", or names under `sources`."""
    choose: int = Field(3, gt=0)
    """Maximum number of pieces that a debater reads in a round."""


@dataclass(frozen=True)
class Response:
    """A debater's verdict and the evidence that it read."""

    verdict: Verdict
    pieces: tuple[int, ...]
    """Numbers in the pool, from 1, of what the debater read."""


async def solve(question: Question, tools: Tools, settings: Settings) -> Answer:
    """Let the agents debate over the pool until they agree, then sum up."""
    debate = Debate(question, tools, settings, *await gather_pool(question, tools, settings))
    names = [f"Agent {n + 1}" for n in range(settings.agents)]
    said, read = dict[str, Response](), set[int]()
    agreed, number = False, 0
    while not agreed and number < settings.rounds:
        number += 1
        said = await debate.respond(names, said)
        for name, response in said.items():
            verdict = response.verdict
            tools.turn(number, name, verdict.text, verdict.label, passages=debate.pieces(response.pieces))
            read |= set(response.pieces)
        answer = unanimous_verdict({name: response.verdict for name, response in said.items()})
        tools.so_far = replace(answer, passages=tuple(debate.pieces(read)))
        ruling = await debate.conclude("judge", said, AGREED)
        tools.turn(number, "judge", ruling.text, ruling.label)
        agreed = ruling.label == "Yes"
    final = await debate.conclude("summariser", said, debate.labels)
    tools.turn(number, "summariser", final.text, final.label)
    answer = replace(
        tools.so_far,
        text=final.label,
        explanation=final.reasons,
        stopped=f"the agents agree in round {number}" if agreed else f"no agreement after {number} round(s)",
    )
    return require_label(tools, answer, "summariser")


async def gather_pool(question: Question, tools: Tools, settings: Settings) -> tuple[list[Passage], str]:
    """(the passages of all sources, the debaters' note of sources without an answer). SourceError where all are."""
    pool: list[Passage] = []
    missing: list[str] = []
    for source, k in settings.pool.items():
        if len(missing) + 1 == len(settings.pool):  # the others failed: without this one there is no debate
            passages: Sequence[Passage] = await tools.search("selector", question.text, k, source=source)
        else:
            result = await tools.try_search("selector", question.text, k, source=source)
            passages = result.passages
            missing += [source] if result.error else []
        pool += passages
    return list(unique(pool)), f"\n(Evidence is missing: {', '.join(missing)} gave no answer.)" if missing else ""


class Debate:
    """Where one question is debated: its task and its pool."""

    def __init__(
        self, question: Question, tools: Tools, settings: Settings, pool: Sequence[Passage], missing: str
    ) -> None:
        self.tools, self.max_pieces, self.pool, self.missing = tools, settings.choose, pool, missing
        self.labels = labels_of(question)
        # The debaters and the summariser have the options in their instructions; the selector and the judge have not.
        self.whole_task = task_with_options(question)

    def pieces(self, numbers: Collection[int]) -> list[Passage]:
        return [passage for number, passage in enumerate(self.pool, 1) if number in numbers]

    async def respond(self, names: Sequence[str], last: Mapping[str, Response]) -> dict[str, Response]:
        choices = await self.tools.gather(*(self._choose(last.get(name)) for name in names))
        responses = await self.tools.gather(
            *(self._answer(name, pieces, last) for name, pieces in zip(names, choices, strict=True))
        )
        return dict(zip(names, responses, strict=True))

    async def conclude(self, role: str, said: Mapping[str, Response], labels: Sequence[Label]) -> Verdict:
        answers = speakers_text({name: _text(response) for name, response in said.items()})
        task = {"task": self.whole_task} if role == "judge" else {}
        dialogue, message = self.tools.begin(role, labels=labels_text(labels), answers=answers, **task)
        read = read_agreement if role == "judge" else read_verdict
        return await ask_verdict(self.tools, dialogue, message, labels, read)

    async def _choose(self, last: Response | None) -> tuple[int, ...]:
        if not self.pool:
            return ()
        max_pieces, size = self.max_pieces, len(self.pool)
        return await self.tools.read(
            *self.tools.begin(
                "selector",
                most=str(max_pieces),
                documents=documents_text(self.pool) + self.missing,
                task=self.whole_task,
                own_answer=quoted(_text(last)) if last else "",
            ),
            lambda text: read_choice(text, size, max_pieces),
        )

    async def _answer(self, name: str, pieces: tuple[int, ...], last: Mapping[str, Response]) -> Response:
        lines = enumerate(documents_text(self.pool).split("\n"), 1)
        evidence = ("\n".join(line for number, line in lines if number in pieces) or "none") + self.missing
        others = {other: _text(response) for other, response in last.items() if other != name}
        dialogue, message = self.tools.begin(
            "debater",
            documents=evidence,
            other_answers=speakers_text(others),
            own_answer=quoted(_text(last[name])) if name in last else "",
        )
        return Response(await ask_verdict(self.tools, dialogue, message, self.labels), pieces)


def _text(response: Response) -> str:
    return response.verdict.text.strip()


def read_agreement(text: str, labels: Sequence[Label]) -> Verdict:
    """Yes or No; "All agents give the same answer: ..." as the last sentence is Yes. Raises Malformed."""
    if SAME.search(text.strip().rpartition("\n")[2]):
        return Verdict(text, "Yes", text.strip())
    return read_verdict(text, labels)


def read_choice(text: str, size: int, max_pieces: int) -> tuple[int, ...]:
    """The numbers on the last line. Out of form, the last pieces that the text names count."""
    meant = named_pieces(text, size)[-max_pieces:]
    line = (text.strip().splitlines() or [""])[-1].strip("*`. ")
    pieces = named_pieces(line, size)
    words = [word.casefold() for word in re.split(r"[\[\],\s]+", line) if word]
    numbers = bool(pieces) and sorted(words) == sorted(map(str, pieces))
    if "[" not in line or not (numbers or words == ["none"]):
        form = f"numbers from 1 to {size} in brackets, such as [2] [5], nor [none]"
        raise Malformed(f"the last line is not {form}", meant)
    if len(pieces) > max_pieces:
        raise Malformed(f"{len(pieces)} pieces of evidence are chosen, and {max_pieces} are allowed", meant)
    return pieces


def named_pieces(text: str, size: int) -> tuple[int, ...]:
    """The pieces that a text names in brackets, in the order in which each is named last; none if it says [none]."""
    named = [word.strip() for bracket in BRACKETS.findall(text) for word in bracket.split(",")]
    if any(word.casefold() == "none" for word in named):
        return ()
    numbers = [int(word) for word in named if re.fullmatch(r"[0-9]{1,4}", word)]
    known = [number for number in reversed(numbers) if 1 <= number <= size]
    return tuple(reversed(dict.fromkeys(known)))


def calls_of(settings: Settings) -> dict[str, Calls]:
    """Between one round and all of them."""
    rounds, pool = (1 + settings.rounds) / 2, sum(settings.pool.values())
    each = settings.agents * rounds
    debate = {"selector": Calls(each, pool), "debater": Calls(each, settings.choose)}
    return {**debate, "judge": Calls(rounds), "summariser": Calls()}


SYSTEM = SystemSpec(
    Settings,
    solve,
    roles=("selector", "debater", "judge", "summariser"),
    prompts=PROMPTS,
    gives_verdict=True,
    calls=calls_of,
)
