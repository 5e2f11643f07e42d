"""AwE, Answer with Evidence (docs/papers/awe.md): two ways to an answer, and a debate in which documents decide.

Knowledge-first: answer from what the model knows, retrieve for question + answer, read. Retrieval-first: retrieve for
the question, draft, retrieve for question + draft, read these second documents alone: two rounds of Iter-RetGen
(section 4.4). A query has all that the model wrote (equations 1 and 6), not the answer taken out of it. An advocate of
each answer argues from its path's documents; the judge sees the question, both answers and both arguments, and writes
the answer.

Budget: 7 model calls (2 a path, 2 advocates, 1 judge) and 3 retrievals (top 3). The two paths run at once, so do the
two advocates. Ablations (`paths`): `knowledge` 2 calls and 1 retrieval, `retrieval` 2 and 2, no debate.

Checked citations (equation 10, `citations: checked`): an argument is its claims, one a sentence. A claim is valid if at
least one of its citations is: [2: "some words"], where document 2 of the advocate's own set holds these words, blanks,
case and typography apart, and they are two or more. That the words support the claim is for the judge to say.

Where the paper disagrees with itself, and what is decided here: docs/papers/awe.md. No code is published. The words of
the prompts are ours.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ratchet.agents.core.output import Malformed
from ratchet.agents.core.prompts import (
    DATA,
    DOCUMENTS_AND_QUESTION,
    KNOW_IN_FORM,
    QUESTION,
    READ_IN_FORM,
    Prompt,
    ReadingSettings,
    documents_text,
    final_answer,
    in_form,
    one_line,
    unanimous,
    unique,
)
from ratchet.agents.core.system import Calls, SystemSpec
from ratchet.agents.core.tools import Answer, Tools
from ratchet.core.records import Passage, Question
from ratchet.core.text import fold_typography
from ratchet.core.words import split_words
from ratchet.inference.chat import Dialogue

CITATION = re.compile(r'\[\s*(\d{1,4})\s*:\s*["“”](.*?)["“”]\s*\]', re.DOTALL)
PLACEHOLDER = re.compile(r"\0(\d+)\0")
CITATION_AFTER_STOP = re.compile(r"([.!?।۔؟。！？]+)((?:\s*\0\d+\0)+)")
SENTENCE_END = re.compile(r"(?<=[.!?।۔؟])(?<!\b[A-Za-z]\.)(?<!\b[DMS][rst]\.)\s+|(?<=[。！？])(?![。！？])")
"""Not after an initial, nor after Dr., Mr., Ms. or St."""


ADVOCATES = ("knowledge_advocate", "retrieval_advocate")

ADVOCATE = {
    "none": (
        "You take part in a debate. You get an answer and its evidence. Argue in at most three sentences why the "
        "answer is right. Repeat neither of them. Begin your argument with >>> and end it with <<<. "
        "Write nothing else."
    ),
    "checked": (
        "You take part in a debate. You get an answer and its evidence. Argue in at most three sentences why the "
        "answer is right. End each sentence with the words of the evidence that prove it, copied exactly, in the form "
        '[document number: "exact words"]. Begin your argument with >>> and end it with <<<. Write nothing else.'
    ),
}
JUDGE = (
    "You judge a debate. Two debaters give an answer to the question and an argument for it. Decide which answer is "
    "correct. Write that exact answer and nothing else."
)
PROMPTS = {
    "knowledge.system": KNOW_IN_FORM,
    "knowledge.user": Prompt(QUESTION),
    "reader.system": READ_IN_FORM,
    "reader.user": Prompt(DOCUMENTS_AND_QUESTION),
    "advocate.system": Prompt(ADVOCATE["none"], note="appendix A.1"),
    "checked_advocate.system": Prompt(ADVOCATE["checked"], note="`citations: checked`"),
    "advocate.user": Prompt("Answer: {{answer}}\nEvidence " + DATA + ":\n{{documents}}", note="appendix A.1"),
    "judge.system": Prompt(JUDGE, note="appendix A.2"),
    "judge.user": Prompt(
        "Question: {{question}}\nAnswer-1: {{answer_1}}\nArgument-1: {{argument_1}}\n"
        "Answer-2: {{answer_2}}\nArgument-2: {{argument_2}}",
        note="appendix A.2",
    ),
}
NO_ARGUMENT = "(no valid argument)"

LABEL = re.compile(
    r"\W*answer[ -]?([12])\b(?:\s*:\s*(.+)| is (?:the )?(?:correct|right|better|best)\b.*|\W*)",
    re.IGNORECASE | re.DOTALL,
)


class Settings(ReadingSettings):
    """AwE's paths, the documents of a retrieval, and whether citations are checked."""

    paths: Literal["both", "knowledge", "retrieval"] = "both"
    """Both paths with a debate, or one path alone."""
    citations: Literal["none", "checked"] = "none"
    """`checked`: advocates quote, and claims without a quote that is in the document are dropped."""


def gold_action(question: Question, settings: Settings) -> tuple[str, str]:
    """The judge's verdict, or the answer of the one path."""
    if settings.paths == "both":
        return "judge", question.gold_answer
    return f"{settings.paths}_reader", in_form(question.gold_answer, settings.answer_form)


@dataclass(frozen=True)
class Path:
    """An answer and the documents that it was read from."""

    answer: str
    passages: list[Passage]


async def solve(question: Question, tools: Tools, settings: Settings) -> Answer:
    """Debate the answers of both paths, or return the answer of one path."""
    paths = []
    if settings.paths != "retrieval":
        thinker = tools.dialogue("knowledge", tools.prompt("knowledge.system", answer_form=settings.form))
        reader = tools.dialogue("knowledge_reader", tools.prompt("reader.system", answer_form=settings.form))
        paths.append(knowledge_first(question.text, tools, settings, thinker, reader))
    if settings.paths != "knowledge":
        system = tools.prompt("reader.system", answer_form=settings.form)
        drafter, reader = tools.dialogue("retrieval_drafter", system), tools.dialogue("retrieval_reader", system)
        paths.append(retrieval_first(question.text, tools, settings, drafter, reader))
    answered = await tools.gather(*paths)
    if len(answered) == 1:
        return Answer(answered[0].answer, tuple(answered[0].passages))

    known, retrieved = answered
    candidates = {"knowledge_first": known.answer, "retrieval_first": retrieved.answer}
    evidence = unique(known.passages + retrieved.passages)
    tools.so_far = Answer(unanimous(candidates.values()), evidence, candidates=candidates)
    system = tools.prompt("advocate.system" if settings.citations == "none" else "checked_advocate.system")
    advocates = [tools.dialogue(role, system) for role in ADVOCATES]
    arguments = await tools.gather(*(argue(tools, a, p, settings) for a, p in zip(advocates, answered, strict=True)))
    verdict = await judge(tools, (known.answer, retrieved.answer), arguments)

    if _same_answer(verdict, retrieved.answer) and not _same_answer(verdict, known.answer):
        evidence = unique(retrieved.passages + known.passages)
    return Answer(verdict, evidence, candidates=candidates)


async def knowledge_first(question: str, tools: Tools, settings: Settings, thinker: Dialogue, reader: Dialogue) -> Path:
    """Answer from memory, retrieve with question and answer, and answer again from the documents."""
    guess = await tools.ask(thinker, tools.prompt("knowledge.user"))
    if settings.paths == "knowledge":
        tools.so_far = Answer(final_answer(guess))
    passages = await tools.search(reader.role, f"{question} {guess}".strip(), settings.documents)
    return Path(final_answer(await read(tools, settings, reader, passages)), passages)


async def retrieval_first(question: str, tools: Tools, settings: Settings, drafter: Dialogue, reader: Dialogue) -> Path:
    """Draft an answer from documents, retrieve with question and draft, and answer from the second documents alone."""
    first = await tools.search(drafter.role, question, settings.documents)
    draft = await read(tools, settings, drafter, first)
    if settings.paths == "retrieval":
        tools.so_far = Answer(final_answer(draft), tuple(first))
    second = await tools.search(reader.role, f"{question} {draft}".strip(), settings.documents)
    return Path(final_answer(await read(tools, settings, reader, second)), second)


async def read(tools: Tools, settings: Settings, reader: Dialogue, passages: Sequence[Passage]) -> str:
    """Ask the model the question with these documents."""
    return await tools.ask(reader, tools.prompt("reader.user", documents=settings.show(passages)))


async def argue(tools: Tools, advocate: Dialogue, path: Path, settings: Settings) -> str:
    """The advocate's argument; with `citations: checked`, those of its claims that are valid."""
    documents = documents_text(path.passages) or "none"
    text = tools.prompt("advocate.user", answer=one_line(path.answer), documents=documents)
    argument = await tools.read(advocate, text, read_argument)
    if settings.citations == "none":
        return argument
    valid, dropped = check_citations(argument, path.passages)
    if dropped:
        claims = "".join(f"\n- {claim}" for claim in dropped)
        tools.note(advocate.role, f"{len(dropped)} of {len(valid) + len(dropped)} claims have no valid quote:{claims}")
    return " ".join(map(str, valid)) or NO_ARGUMENT


async def judge(tools: Tools, answers: tuple[str, str], arguments: Sequence[str]) -> str:
    """The judge's answer, from the question, both answers and both arguments."""
    dialogue, text = tools.begin(
        "judge",
        answer_1=one_line(answers[0]),
        argument_1=one_line(arguments[0]),
        answer_2=one_line(answers[1]),
        argument_2=one_line(arguments[1]),
    )
    return await tools.read(dialogue, text, lambda said: read_verdict(said, answers))


def read_argument(text: str) -> str:
    """The text between the first >>> and the next <<<; out of form, the text without these marks."""
    _, begun, rest = text.partition(">>>")
    argument, ended, _ = rest.partition("<<<")
    if not (begun and ended and argument.strip()):
        unmarked = text.replace(">>>", "").replace("<<<", "").strip()
        raise Malformed("Write >>>, then your argument, then <<<.", unmarked)
    return argument.strip()


def read_verdict(text: str, answers: tuple[str, str]) -> str:
    """The answer that the judge wrote. Out of form, a verdict less its label counts, or the answer that the label names
    where the verdict only says that it is right."""
    verdict = final_answer(text)
    if verdict and not LABEL.match(verdict):
        return verdict
    label = LABEL.fullmatch(verdict)
    meant = verdict if label is None else (label[2] or answers[int(label[1]) - 1]).strip()
    raise Malformed("Write the correct answer itself, without a label.", meant)


def _same_answer(answer: str, other: str) -> bool:
    return answer.strip().casefold() == other.strip().casefold()


# Checked citations


@dataclass(frozen=True)
class Claim:
    """One sentence of an argument and what it cites."""

    text: str
    citations: tuple[tuple[int, str], ...] = ()
    """(document number, quote)"""

    def __str__(self) -> str:
        return " ".join([self.text, *(f'[{number}: "{quote}"]' for number, quote in self.citations)])


def check_citations(argument: str, passages: Sequence[Passage]) -> tuple[list[Claim], list[Claim]]:
    """(valid claims, each with its valid citations alone; the claims that were dropped)."""
    valid, dropped = [], []
    for claim in split_claims(argument):
        citations = tuple(c for c in claim.citations if has_quote(*c, passages))
        if citations:
            valid.append(Claim(claim.text, citations))
        else:
            dropped.append(claim)
    return valid, dropped


def split_claims(argument: str) -> list[Claim]:
    """The argument's sentences with their citations, whether these stand before the full stop or behind it."""
    citations: list[tuple[int, str]] = []

    def placeholder(citation: re.Match[str]) -> str:
        citations.append((int(citation[1]), " ".join(citation[2].split())))
        return f"\0{len(citations) - 1}\0"  # a quote may hold full stops, which end no claim

    text = CITATION.sub(placeholder, argument.replace("\0", ""))
    text = CITATION_AFTER_STOP.sub(r"\2\1", text)
    claims = []
    for sentence in SENTENCE_END.split(text):
        cited = tuple(citations[int(number)] for number in PLACEHOLDER.findall(sentence))
        words = re.sub(r"\s+([.!?,;।۔؟。！？，；])", r"\1", " ".join(PLACEHOLDER.sub(" ", sentence).split()))
        if re.search(r"\w", words):
            claims.append(Claim(words, cited))
    return claims


def has_quote(number: int, quote: str, passages: Sequence[Passage]) -> bool:
    """Tell whether document `number`, counted from 1, holds the quote."""
    words = _normalised(quote)
    if not 1 <= number <= len(passages) or len(split_words(words)) < 2:
        return False
    passage = passages[number - 1]
    return words in _normalised(f"{passage.title}: {passage.text}")


def _normalised(text: str) -> str:
    return " ".join(fold_typography(text).casefold().split())


def calls_of(settings: Settings) -> dict[str, Calls]:
    """Both paths with their arguments and the judge, or one path alone."""
    reading = Calls(1, settings.documents)
    knowledge = {"knowledge": Calls(), "knowledge_reader": reading}
    retrieval = {"retrieval_drafter": reading, "retrieval_reader": reading}
    if settings.paths != "both":
        return knowledge if settings.paths == "knowledge" else retrieval
    return {**knowledge, **retrieval, "knowledge_advocate": reading, "retrieval_advocate": reading, "judge": Calls()}


SYSTEM = SystemSpec(
    Settings,
    solve,
    roles=("knowledge", "knowledge_reader", "retrieval_drafter", "retrieval_reader", *ADVOCATES, "judge"),
    prompts=PROMPTS,
    gold_action=gold_action,
    calls=calls_of,
)
