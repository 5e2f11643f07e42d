"""The inputs and replies of mRAG's agents: the field names are the paper's, the words ours.

Source: Salemi et al. 2025, arXiv 2506.10844, figures 15 to 21.

A field's description is also what the prompts say about it, so a prompt and its schema cannot disagree. Where a figure
names no type, the type here is for grammars, and any JSON value is read (`agents.core.output.ANY`).
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args

from pydantic import BaseModel, ConfigDict, Field, RootModel, create_model

from ratchet.agents.core.output import AnyInteger, AnyText, AnyTexts, JsonObject, at_most, is_explanation
from ratchet.agents.core.prompts import DATA

M = TypeVar("M", bound=BaseModel)


class Fields(JsonObject):
    """The fields of an agent's input or reply."""


Question = Annotated[AnyText, Field(description="the question that is to be answered")]
Information = Annotated[
    AnyText, Field(description="what is known so far, in full or as a digest; empty when nothing is known yet")
]


# Inputs: what the coordinator gives to an agent


class WorkerInput(Fields):
    """Input of the planner and of the summarizer, and what most agents are given."""

    question: Question
    information: Information


class SearcherInput(WorkerInput):
    """Input of the searcher."""

    suggestions: AnyTexts = Field(description="a list of aspects that are worth searching for")


class ReasonerInput(WorkerInput):
    """Input of the reasoner."""

    aspect: AnyText = Field(description="the aspect of the question to reason about")


class ValidatorInput(WorkerInput):
    """Input of the validator."""

    response: AnyText = Field(description="the response that is to be checked")


class AnswererInput(Fields):
    """Input of the answerer."""

    question: Question
    guidance: AnyText = Field(description="how to build the response and what to cover, without giving the answer away")
    important_information: str = Field(description="the facts that matter most and must appear in the response")


class ReviserInput(Fields):
    """Input of the reviser."""

    question: Question
    suggestion: str = Field(description="what to change in the response")


class FinisherInput(Fields):
    """Input of the finisher."""

    finished: bool = Field(description="whether the work is done: always true")


# Outputs: what an agent's model emits


class Plan(Fields):
    """Reply of the planner."""

    plan: AnyTexts = Field(
        description="a list of the steps, in order, that lead to a correct and well-supported response"
    )


class Query(Fields):
    """Reply of the searcher at its first turn."""

    search_query: AnyText = Field(description="a query that should bring up useful documents")
    search_query_explanation: str = Field(description="why this query")


class Relevance(Fields):
    """The searcher's judgement of one document."""

    doc_id: AnyInteger = Field(description="the ID of a document shown in this turn")
    is_relevant: bool = Field(description="true if it is relevant to the query and helps to answer the question")
    is_relevant_explanation: str = Field(description="why it is relevant or not")


class Review(Fields):
    """Reply of the searcher at every later turn."""

    query_id: AnyInteger = Field(None, description="the ID of the query whose results these are")
    relevance: list[Relevance] = Field(description="a list with one object for each document")
    change_search_query: bool = Field(
        description="true to go on with another query, which helps when several turns of this one brought nothing; "
        "false to keep it and see its next documents"
    )
    change_search_query_explanation: str = Field(description="why the query should change or stay")
    new_search_query: AnyText = Field("", description="the other query; empty unless change_search_query is true")
    end_search: bool = Field(
        description="true when enough has been found or more searching is pointless; must be false when "
        "change_search_query is true"
    )
    end_search_explanation: str = Field(description="why the search should end or go on")


class Summary(Fields):
    """Reply of the summarizer."""

    summary: AnyText = Field(description="a short summary that keeps what matters for the question")


class Analysis(Fields):
    """Reply of the reasoner."""

    analysis: AnyTexts = Field(description="the reasoning about this aspect, a list with one step in each string")


class Criterion(Fields):
    """One demand that the validator found."""

    criteria: AnyText = Field(description="one demand that the question itself makes, such as being short or detailed")
    criteria_explanation: str = Field(description="how the question makes it")
    is_response_valid: bool = Field(description="true if the response meets it")
    is_response_valid_feedback: AnyText = Field(description="in what way it does or does not, and what would help")


class Validation(Fields):
    """Reply of the validator."""

    extracted_criteria: list[Criterion] = Field(
        description="a list with one object for each demand, empty if there is none"
    )
    is_groundedly_supported: bool = Field(description="true if the information supports every part of the response")
    is_groundedly_supported_feedback: AnyText = Field(description="which parts lack support and how to mend that")
    is_correctly_answered: bool = Field(description="true if the response answers the question correctly")
    is_correctly_answered_feedback: AnyText = Field(description="what is wrong or missing and how to mend it")


class Response(Fields):
    """Reply of the answerer and the reviser."""

    response: AnyText = Field(description="the response: correct, to the point, and supported by the information given")


class SearchResult(Fields):
    """The searcher's report to the coordinator."""

    found_information: bool = Field(description="true if relevant documents were found")
    documents: list[str] = Field(description=f"a list of the documents judged relevant {DATA}")


class Refusal(Fields):
    """The coordinator's message about an agent that could not act."""

    error: str


INPUTS: dict[str, type[Fields]] = {
    "planner": WorkerInput,
    "searcher": SearcherInput,
    "reasoner": ReasonerInput,
    "summarizer": WorkerInput,
    "validator": ValidatorInput,
    "answerer": AnswererInput,
    "reviser": ReviserInput,
    "finisher": FinisherInput,
}
OUTPUTS: dict[str, type[Fields]] = {
    "planner": Plan,
    "searcher": SearchResult,
    "reasoner": Analysis,
    "summarizer": Summary,
    "validator": Validation,
    "answerer": Response,
    "reviser": Response,
}


# The coordinator's action, for the agents on offer


class Action(Fields):
    """Reply of the coordinator: the next agent and its input."""

    agent: str = Field(description="the name of the agent that acts next")
    input: Any = Field(None, description="what it is given: an object with the input fields of that agent")
    reason: str = Field("", description="why this agent with this input")


def _any_of(schema: dict[str, Any]) -> None:
    # Grammars know anyOf; oneOf, which pydantic writes, means the same where one field tells the kinds apart.
    schema["anyOf"] = schema.pop("oneOf", [])
    schema.pop("discriminator", None)
    schema.pop("description", None)


class FullAction(RootModel[Any]):
    """The base of `full_action`."""

    model_config = ConfigDict(frozen=True, json_schema_extra=_any_of)


@cache
def full_action(offered: tuple[str, ...], explanations: bool) -> type[FullAction]:
    """{agent, input, reason}: the input has the fields of the agent that is named. `root` is like an Action."""
    kinds: list[Any] = []
    for agent in offered:
        fields: dict[str, Any] = {"agent": (Literal[agent], ...), "input": (INPUTS[agent], ...)}
        kinds.append(create_model(f"{agent.title()}Action", __base__=Fields, **fields, **_reason(explanations)))
    root: Any = (Union[tuple(kinds)], Field(discriminator="agent"))  # noqa: UP007
    return create_model("FullAction", __base__=FullAction, root=root)


@cache
def brief_action(offered: tuple[str, ...], explanations: bool) -> type[Action]:
    """{agent, reason}: the inputs are filled in for the coordinator."""
    fields: dict[str, Any] = {"agent": (Literal[offered], ...)}
    return cast(Any, create_model("Action", __base__=Fields, **fields, **_reason(explanations)))


def _reason(explanations: bool) -> dict[str, Any]:
    return {"reason": (str, ...)} if explanations else {}


# What the brief searcher emits: small models ramble, so a query has a bound that a grammar can keep

ShortQuery = Annotated[str, at_most(characters=100)]


class BriefQuery(Fields):
    """A query of the brief searcher."""

    search_query: ShortQuery


class EndSearch(Fields):
    """A judgement that ends the search."""

    relevance: list[bool]
    end_search: Literal[True]


class ContinueSearch(Fields):
    """A judgement that continues the search."""

    relevance: list[bool]
    end_search: Literal[False]
    new_search_query: ShortQuery
    """Empty, or the query as it is: the next documents of the same query."""


class BriefReview(RootModel[Any]):
    """The base of `brief_review`."""

    model_config = ConfigDict(frozen=True, json_schema_extra=_any_of)


@cache
def brief_review(documents: int, last: bool) -> type[BriefReview]:
    """One boolean for each of so many documents, and whether to end; a query only where the search can go on.

    `root` is EndSearch or ContinueSearch.
    """
    exact: Any = (Annotated[list[bool], Field(min_length=documents, max_length=documents)], ...)
    kinds = [
        create_model(kind.__name__, __base__=kind, relevance=exact)
        for kind in ((EndSearch,) if last else (EndSearch, ContinueSearch))
    ]
    if last:
        return create_model("BriefReview", __base__=BriefReview, root=(kinds[0], ...))
    root: Any = (Union[tuple(kinds)], Field(discriminator="end_search"))  # noqa: UP007
    return create_model("BriefReview", __base__=BriefReview, root=root)


class BriefAnswer(Fields):
    """Small models copy far better under the key `answer` than under the paper's `response`."""

    answer: Annotated[str, at_most(characters=200)]


class BriefValidation(Fields):
    """Reply of the brief validator."""

    is_groundedly_supported: bool
    is_correctly_answered: bool
    is_correctly_answered_feedback: str


# Variants without explanations


@cache
def variant(model: type[M], explanations: bool) -> type[M]:
    """The model itself, or the same without its explanation fields, which no code reads."""
    if explanations:
        return model
    fields: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        if not is_explanation(name):
            part = part_of(field.annotation)
            fields[name] = (list[variant(part, explanations)] if part else field.annotation, field)  # type: ignore[misc]
    return cast(type[M], create_model(model.__name__, __base__=Fields, **fields))


def part_of(annotation: Any) -> type[Fields] | None:
    """The model of a list's objects; None where a field is no list of objects."""
    part = next(iter(get_args(annotation)), None)
    return part if isinstance(part, type) and issubclass(part, Fields) else None
