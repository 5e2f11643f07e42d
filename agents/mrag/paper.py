"""The words of the prompts in both styles. The wording is ours.

The paper's style has every field of figures 15 to 21, inputs and outputs as JSON. The brief one (`style: brief`) is for
small models on small machines, with constrained decoding (system.malformed: constrain): a role has a sentence or two
and few tokens to emit, and its inputs are filled in. There the fixed words come first and the question last, so all
questions share a cached prefix, and an agent that is called again gets only what is new to it. What mattered most for
SmolLM2-135M, when measured: a worked example, the best document last (it copies from what is nearest), and the key
`answer` where the paper has `response`.

`AGENTS` has the words about each agent, `PAPER_PROMPTS` the messages, and `Paper` fills them in. The fields, and what
the prompts say of them, are in `schemas.py`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from ratchet.agents.core.prompts import BRIEF_DATA, DATA, QUESTION, FillIn, Prompt, one_line, passage_text
from ratchet.agents.mrag.schemas import (
    INPUTS,
    OUTPUTS,
    Action,
    BriefAnswer,
    BriefQuery,
    BriefValidation,
    Fields,
    Query,
    Review,
    SearchResult,
    brief_action,
    brief_review,
    full_action,
    part_of,
    variant,
)
from ratchet.agents.mrag.state import LENGTHS, Page, Settings, State
from ratchet.core.records import Passage


def rebase(ids: Sequence[int | None], expected: Sequence[int], known: Collection[int] = ()) -> list[int] | None:
    """The expected number of every id, in the reply's order; None where that cannot be told.

    Exactly the expected numbers, in any order, are taken as they are. As many numbers that count from 0 or from 1
    (0, 1, 2 of the items 5, 6, 7) name places, unless one of them is the number of an item that the model knows
    (`known`). Of anything else nothing is taken: an id that happens to be expected may name its neighbour.
    """
    given = set(ids)
    if given == set(expected):
        return [number for number in ids if number is not None]
    counted = [list(range(first, first + len(expected))) for first in (0, 1)]
    return list(expected) if list(ids) in counted and given.isdisjoint(known) else None


ONLY_JSON = "Write that one JSON object and nothing else."

COORDINATOR = """\
You lead a team of agents. Your task is to bring about a response to the user's question that is informative, to the \
point, and supported by what the team has found. You work in turns: each turn you pick the one agent whose skill is \
needed most at this moment and tell it what to work on; its output is your next message. Take as many turns as the \
question deserves. Agents may be called in any order and more than once, but calling one again only pays when there is \
something new for it to do.

In each turn write one JSON object with these fields:
{{fields}}

These agents are at your service:

{{agents}}

The user's message is the question. """


@dataclass(frozen=True)
class AgentWords:
    """The words of the prompts about an agent."""

    about: str
    """To the coordinator."""
    figure: str = ""
    """Of the paper, that shows its prompt."""
    task: str = ""
    """To the agent itself, whose prompt is this task and its fields."""


AGENTS = {
    "planner": AgentWords(
        "Lays out a strategy for answering the question. Best called first, and again when plans need changing.",
        "figure 17",
        "You plan how a question can be answered. From the question and what is known so far, work out the "
        "steps that lead to a correct response with good support. Do not answer the question.",
    ),
    "searcher": AgentWords(
        "Searches a document collection. Call it, as often as needed, for information that is still missing.",
        "figure 16",
    ),
    "reasoner": AgentWords(
        "Thinks one aspect of the question through on the basis of the information you pass on.",
        "figure 19",
        "You are an analyst. Examine the information from the aspect you are given, step by step and in sound "
        "logic, so that the analysis helps whoever answers the question later. Do not answer the question yourself.",
    ),
    "summarizer": AgentWords(
        "Condenses the information you pass on. Useful when much has been gathered.",
        "figure 18",
        "You condense information. Keep what helps to answer the question, leave out the rest, and be short.",
    ),
    "validator": AgentWords(
        "Checks a response against the demands of the question and against the information.",
        "figure 20",
        "You examine a response to a question. Find the demands that the question itself makes of a response, "
        "check each, then check support and correctness. Your feedback should tell the author what to improve.",
    ),
    "answerer": AgentWords(
        "Writes the response; it is given the relevant documents without your doing. May be called again.",
        "figure 21",
        "You write the response to a question from the material you are given. State nothing that the material "
        "does not support and nothing that the question does not call for.",
    ),
    "reviser": AgentWords(
        "Rewrites the answerer's response along your suggestion. It has nothing to work on before the answerer.",
        "figure 21",
    ),
    "finisher": AgentWords("Ends the work: the latest response becomes final."),
}

ANSWERER_INPUT = f"""\
- "question": the question that is to be answered
- "supporting information": the documents found so far {DATA}
- "plan": how to build the response and what to cover
- "important information": the facts that must appear in the response"""

SEARCHER = """\
You search a document collection on behalf of someone who has a question to answer. Searching brings up documents, \
not answers: your queries should fetch material from which the answer can be built. You work in turns, until what has \
been found suffices or searching further makes no sense.

Step 1. You are given
{{inputs}}
and write one JSON object with
{{query_fields}}

Step 2, repeated. You are shown the next documents of your query, each with its ID, and judge them in one JSON object \
with
{{review_fields}}

"""

RESULTS = (
    f"Your query returned {DATA}:\n"
    + """\
Query ID: {{query_id}}
{{documents}}
Judge this with an open mind, in the format of step 2 and without any further text."""
)

REVISER = """\
Thank you. Your response can be made more accurate or better supported: rewrite it along the suggestion.
You are given
{{inputs}}
and write one JSON object with
{{outputs}}

{{input}}

{{length?}}"""

FIELDS = "\n\nYou are given\n{{inputs}}\nand write one JSON object with\n{{outputs}}\n\n"
WITH_TASKS = {agent: words for agent, words in AGENTS.items() if words.task}
PAPER_PROMPTS: dict[str, Prompt] = {
    "coordinator.system": Prompt(COORDINATOR + ONLY_JSON, ("fields", "agents"), "figure 15"),
    "coordinator.user": Prompt("{{input}}", (), "figure 15"),
    "report.user": Prompt("{{output}}", (), "an agent's output, for the coordinator"),
    "searcher.system": Prompt(SEARCHER + ONLY_JSON, ("inputs", "query_fields", "review_fields"), "figure 16"),
    "results.user": Prompt(RESULTS, ("query_id",), "figure 16, results of a search"),
    **{
        f"{agent}.system": Prompt(words.task + FIELDS + ONLY_JSON, ("inputs", "outputs"), words.figure)
        for agent, words in WITH_TASKS.items()
    },
    "searcher.user": Prompt("{{input}}", (), "figure 16"),
    **{f"{agent}.user": Prompt("{{input}}", (), words.figure) for agent, words in WITH_TASKS.items()},
    "answerer.system": Prompt(
        AGENTS["answerer"].task + "\n\n{{length?}}" + FIELDS + ONLY_JSON, ("inputs", "outputs", "length"), "figure 21"
    ),
    "reviser.user": Prompt(REVISER, ("inputs", "outputs", "length"), "figure 21"),
}
"""`input` is the agent's input as a JSON object, as `output` is what one returned."""


@dataclass(frozen=True)
class PageJudgement:
    """The searcher's judgement of one page."""

    relevant: tuple[Passage, ...]
    end: bool
    new_query: str
    """Empty: go on with the same query."""


Output = Fields | tuple[Passage, ...]
"""What an agent returned to the coordinator: the fields of its reply; of the searcher, the documents that it found."""


class Paper:
    """The words of the prompts and the fields that a model must emit, in the paper's style (`style: paper`)."""

    def __init__(self, settings: Settings, prompt: FillIn) -> None:
        self.prompt, self.offered, self.explanations = prompt, settings.offered, settings.explanations
        self.length = LENGTHS[settings.length]

    @property
    def query(self) -> type[Query] | type[BriefQuery]:
        """Schema of the searcher's first turn, with a `search_query`."""
        return variant(Query, self.explanations)

    def system(self, agent: str) -> str:
        """The fixed instructions that open an agent's conversation."""
        if agent == "coordinator":
            agents = "\n\n".join(self._entry(name) for name in self.offered)
            return self.prompt("coordinator.system", fields=self._fields(Action), agents=agents)
        inputs = self._fields(INPUTS[agent])
        if agent == "searcher":
            query, review = self._fields(Query), self._fields(Review)
            return self.prompt("searcher.system", inputs=inputs, query_fields=query, review_fields=review)
        inputs = ANSWERER_INPUT if agent == "answerer" else inputs
        outputs = self._fields(OUTPUTS[agent])
        return self.prompt(f"{agent}.system", inputs=inputs, outputs=outputs, length=self.length)

    def examples(self, agent: str) -> tuple[tuple[str, str], ...]:
        """Worked exchanges that come before an agent's first."""
        return ()

    def first_message(self, question: str) -> str:
        """The coordinator's first message."""
        return self.prompt("coordinator.user", input=_json({"question": question}))

    def action_schema(self, offered: tuple[str, ...]) -> type[BaseModel]:
        """Schema of the coordinator's turn, when these agents may be called."""
        return full_action(offered, self.explanations)

    def read_action(self, action: Any) -> tuple[str, Fields | None]:
        """The agent that an action names, and its input where the coordinator writes it."""
        return action.root.agent, action.root.input

    def agent_message(self, agent: str, given: Fields | None, state: State) -> str:
        """The message with which an agent is called."""
        values = given.model_dump() if given else {}
        if state.settings.question == "user":
            values["question"] = state.question
        if agent == "answerer":
            values = {
                "question": values["question"],
                "supporting information": [passage_text(p) for p in state.documents.values()],
                "plan": values["guidance"],
                "important information": values["important_information"],
            }
        if agent == "reviser":
            suggestion = _json({"suggestion": values["suggestion"]})
            inputs = f'- "suggestion": {INPUTS[agent].model_fields["suggestion"].description}'
            outputs = self._fields(OUTPUTS[agent])
            return self.prompt("reviser.user", inputs=inputs, outputs=outputs, input=suggestion, length=self.length)
        return self.prompt(f"{agent}.user", input=_json(values))

    def output_schema(self, agent: str) -> type[Fields]:
        """Schema of what an agent other than the searcher returns."""
        return variant(OUTPUTS[agent], self.explanations)

    def report_message(self, agent: str, output: Output) -> str:
        """The coordinator's next message: what the called agent returned."""
        if isinstance(output, tuple):
            documents = [passage_text(p) for p in output]
            output = SearchResult(found_information=bool(documents), documents=documents)
        return self.prompt("report.user", output=_json(output.model_dump()))

    def results_message(self, page: Page) -> str:
        """The searcher's message after a retrieval."""
        lines = [
            f"Document {i} ID: {number}\nDocument {i} text: {one_line(passage_text(passage))}"
            for i, (number, passage) in enumerate(page.passages, 1)
        ]
        return self.prompt("results.user", query_id=str(page.query_id), documents="\n".join(lines) or page.remark)

    def review_schema(self, documents: int, last: bool) -> type[BaseModel]:
        """Schema of the searcher's judgement of so many documents; `last` when the search ends with it."""
        return variant(Review, self.explanations)

    def read_judgement(self, review: Any, page: Page) -> PageJudgement:
        """Return the searcher's decision. Ids are those of any document that it was shown, as in table 2, which judges
        some of an earlier page again; numbers that it was not shown for this query may be places on the page."""
        given = [judged.doc_id for judged in review.relevance]
        ids = rebase(given, [number for number, _ in page.passages], page.of_query) or given
        yes = {number for number, judged in zip(ids, review.relevance, strict=True) if judged.is_relevant}
        relevant = tuple(passage for number, passage in page.shown.items() if number in yes)
        return PageJudgement(relevant, review.end_search, review.new_search_query if review.change_search_query else "")

    def _entry(self, agent: str) -> str:
        outputs = f"Output:\n{self._fields(OUTPUTS[agent])}" if agent in OUTPUTS else "It has no output."
        return f"## {agent}\n{AGENTS[agent].about}\nInput:\n{self._fields(INPUTS[agent])}\n{outputs}"

    def _fields(self, model: type[Fields], indent: str = "") -> str:
        """One line for each field, those of a list's objects indented under it."""
        lines = []
        for name, field in variant(model, self.explanations).model_fields.items():
            part = part_of(field.annotation)
            lines.append(f'{indent}- "{name}": {field.description}')
            if part:
                lines.append(self._fields(part, indent + "  "))
        return "\n".join(lines)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


ABOUT = {
    "planner": "lists steps",
    "searcher": "finds documents",
    "reasoner": "thinks about the documents",
    "summarizer": "sums up the documents",
    "validator": "checks the response",
    "answerer": "writes the response from the documents",
    "reviser": "improves the response",
    "finisher": "ends, once there is a response",
}

TASKS = {
    "planner": 'List the steps that answer the question.\nFormat: {"plan": [..]}',
    # Fields named in prose: with a format line here, SmolLM2's queries were its placeholders or free invention.
    "searcher": "You search documents. Turn the question into a search_query. Then tell the relevance of each "
    "document, true or false, and if you end_search or need a new_search_query.",
    "reasoner": 'Think step by step about what the documents say on the question.\nFormat: {"analysis": [..]}',
    "summarizer": 'Sum up what the documents say on the question.\nFormat: {"summary": ..}',
    "validator": "Check if the response answers the question and the documents support it.\nFormat: "
    '{"is_groundedly_supported": .., "is_correctly_answered": .., "is_correctly_answered_feedback": ..}',
    "answerer": "Answer the question briefly from the documents.",
}
MATERIAL = "{{documents?}}\n{{notes?}}\n"
SETTING = "`style: brief`"
BRIEF_PROMPTS: dict[str, Prompt] = {
    "brief_coordinator.system": Prompt(
        f"Choose who acts next to answer the question. {BRIEF_DATA}\n" + "{{agents}}\nFormat: {{format}}",
        ("agents", "format"),
        SETTING,
    ),
    "brief_coordinator.user": Prompt(QUESTION, (), SETTING),
    "brief_report.user": Prompt("{{agent}}: {{output}}", ("agent",), SETTING),
    "brief_results.user": Prompt("{{documents}}", (), SETTING),
    **{f"brief_{agent}.system": Prompt(f"{BRIEF_DATA} {task}", (), SETTING) for agent, task in TASKS.items()},
    "brief_answerer.system": Prompt(f"{BRIEF_DATA} {TASKS['answerer']}\n\n" + "{{length?}}", ("length",), SETTING),
    **{f"brief_{agent}.user": Prompt(MATERIAL + QUESTION, (), SETTING) for agent in TASKS},
    "brief_validator.user": Prompt(MATERIAL + "Response: {{response}}\n" + QUESTION, (), SETTING),
    "brief_reviser.user": Prompt(MATERIAL + "Improve your response.\n" + QUESTION, (), SETTING),
}

EXAMPLE_DOCUMENTS = """\
Document: Pim: Pim is a horse that eats oats. It was trained by Jil Warrow.
Document: Tollen: Tollen is a horse that won the race of 1233. It was trained by Bram Ostley."""
EXAMPLE_QUESTION = "Question: Who trained Tollen?"
ANSWER_EXAMPLE = (f"{EXAMPLE_DOCUMENTS}\n{EXAMPLE_QUESTION}", '{"answer": "Bram Ostley"}')
EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "searcher": (
        (EXAMPLE_QUESTION, '{"search_query": "Tollen"}'),
        (EXAMPLE_DOCUMENTS, '{"relevance": [false, true], "end_search": true}'),
    ),
    "answerer": (ANSWER_EXAMPLE,),
}


BRIEF_OUTPUTS: dict[str, type[Fields]] = {"validator": BriefValidation, "answerer": BriefAnswer, "reviser": BriefAnswer}


def document_line(passage: Passage) -> str:
    """A document in the brief prompts."""
    return f"Document: {one_line(passage_text(passage))}"


class Brief(Paper):
    """The brief style of prompts (`style: brief`)."""

    @property
    def query(self) -> type[Query] | type[BriefQuery]:
        return BriefQuery

    def system(self, agent: str) -> str:
        if agent == "coordinator":
            agents = "\n".join(f"{name}: {ABOUT[name]}" for name in self.offered)
            form = '{"agent": .., "reason": ..}' if self.explanations else '{"agent": ..}'
            return self.prompt("brief_coordinator.system", agents=agents, format=form)
        return self.prompt(f"brief_{agent}.system", length=self.length)

    def examples(self, agent: str) -> tuple[tuple[str, str], ...]:
        return EXAMPLES.get(agent, ())

    def first_message(self, question: str) -> str:
        return self.prompt("brief_coordinator.user", question=question)

    def action_schema(self, offered: tuple[str, ...]) -> type[BaseModel]:
        return brief_action(offered, self.explanations)

    def read_action(self, action: Any) -> tuple[str, Fields | None]:
        return action.agent, None

    def agent_message(self, agent: str, given: Fields | None, state: State) -> str:
        documents, notes = state.unseen("answerer" if agent == "reviser" else agent)
        return self.prompt(
            f"brief_{agent}.user",
            documents="\n".join(document_line(p) for p in state.newest_last(documents)),
            notes="\n".join(f"Note: {note}" for note in notes),
            response=one_line(state.response),
            question=state.question,
        )

    def output_schema(self, agent: str) -> type[Fields]:
        return BRIEF_OUTPUTS.get(agent, OUTPUTS[agent])

    def report_message(self, agent: str, output: Output) -> str:
        return self.prompt("brief_report.user", agent=agent, output=one_line(self.output_line(output)))

    def output_line(self, output: Output) -> str:
        """An output as one short line."""
        if isinstance(output, tuple):
            names = [p.title or " ".join(p.text.split()[:8]) for p in output]
            return f"found {'; '.join(dict.fromkeys(names))}" if names else "found nothing"
        if isinstance(output, BriefValidation):
            supported = "supported" if output.is_groundedly_supported else "not supported"
            correct = "correct" if output.is_correctly_answered else "not correct"
            return f"{supported}, {correct}. {output.is_correctly_answered_feedback}".strip()
        (value,) = output.model_dump().values()
        return " ".join(value) if isinstance(value, list) else str(value)

    def results_message(self, page: Page) -> str:
        documents = "\n".join(document_line(passage) for _, passage in reversed(page.passages)) or page.remark
        return self.prompt("brief_results.user", documents=documents)

    def review_schema(self, documents: int, last: bool) -> type[BaseModel]:
        return brief_review(documents, last)

    def read_judgement(self, review: Any, page: Page) -> PageJudgement:
        judged = zip(page.passages, reversed(review.root.relevance), strict=True)
        relevant = tuple(passage for (_, passage), yes in judged if yes)
        return PageJudgement(relevant, review.root.end_search, getattr(review.root, "new_search_query", ""))
