"""Messages decoded from token ids, outcomes in plain words, colours of differences, and explanations of terms."""

from pathlib import Path
from typing import get_args

import pytest

from ratchet.core.config import Config
from ratchet.core.records import ModelCall, Note, Question, Score, Search, Status, ToolCall, Trajectory
from ratchet.evaluation.measures.estimates import Difference
from ratchet.inference.chat import Dialogue
from ratchet.inference.completion import Completion
from ratchet.report.rounds import tone_of
from ratchet.report.terms import ENDINGS, count_outcomes, measure_term, outcomes_of, term, with_null_scores
from ratchet.report.view import MessageDecoder
from tests.helpers.handmade_run import HOSTILE, make_config
from tests.helpers.tiny import save_tiny_tokenizer, tiny_format

CHAT = tiny_format()


def config_with(folder: Path, model: Path) -> Config:
    config = make_config(folder, train=1, test=1, dev=1)
    agent = config.models["agent"].model_copy(update={"path": str(model)})
    return config.model_copy(update={"models": {"agent": agent}})


def test_messages_are_the_exact_texts_with_control_tokens_apart(tmp_path: Path) -> None:
    dialogue = Dialogue("answerer", "agent", CHAT, True, "Answer briefly.")
    dialogue.user(HOSTILE)
    ids = (*CHAT.encode("It is <b>Ada</b>."), CHAT.end_of_turn)
    dialogue.assistant(Completion(ids, "It is <b>Ada</b>.", "stop", 9), parsed=True)
    conversation = dialogue.freeze()
    decoder = MessageDecoder(config_with(tmp_path, save_tiny_tokenizer(tmp_path / "model")).models)
    texts = decoder.decode(conversation)
    assert not decoder.problems and len(texts) == len(conversation.spans)
    assert "".join(piece for pieces in texts for piece in pieces) == CHAT.decode(conversation.ids)
    by_author = [(span.author, pieces) for span, pieces in zip(conversation.spans, texts, strict=True)]
    assert ("system", ("Answer briefly.",)) in by_author
    assert all(pieces[0] == "" for author, pieces in by_author if author == "template"), "none of it is a message"
    user = next(pieces for author, pieces in by_author if author == "user")
    assert user == (HOSTILE,), "a control token that a document writes is ordinary text"
    assert by_author[-1][1] == ("It is <b>Ada</b>.", CHAT.decode([CHAT.end_of_turn]))


def test_without_the_model_the_page_says_why_once(tmp_path: Path) -> None:
    dialogue = Dialogue("answerer", "agent", CHAT, True, "Answer briefly.")
    decoder = MessageDecoder(config_with(tmp_path, tmp_path / "nowhere").models)
    assert decoder.decode(dialogue.freeze()) == () == decoder.decode(dialogue.freeze())
    assert len(decoder.problems) == 1 and "no such model folder" in decoder.problems[0]
    other = dialogue.freeze().model_copy(update={"model": "judge"})
    assert decoder.decode(other) == () and "the config has no model 'judge'" in decoder.problems[1]


def attempt(answer: str, status: Status = "finished", **changes: object) -> Trajectory:
    made = Trajectory(
        key="t", question_id="q", system="s", policy="base", sample=0, seed=0, status=status, answer=answer
    )
    return made.model_copy(update=changes)


def test_every_ending_and_problem_has_a_message() -> None:
    assert set(ENDINGS) == set(get_args(Status))
    question = Question(id="q", text="Who?", answers=("Ada Pell",))
    assert outcomes_of(question, attempt("Ada Pell")) == ["finished"]
    assert outcomes_of(question, attempt("Ada")) == ["finished", "partly_right"]
    assert outcomes_of(question, attempt("Tom")) == ["finished", "wrong_answer"]
    assert outcomes_of(question, attempt("", "unparsed")) == ["unparsed", "no_answer"]
    call = ModelCall(
        role="r", conversation=0, start=0, end=1, text="{", parse="malformed", finish_reason="length",
        prompt_tokens=1, new_tokens=1, at=0, seconds=0,
    )  # fmt: skip
    refused = ToolCall(role="r", source="s", tool="t", arguments={}, error="no", at=0, seconds=0)
    nothing = Search(role="r", query="x", k=1, offset=0, passages=(), at=0, seconds=0)
    null = [Score(trajectory="t", name="f1", value=None, reason="the judge was not understood")]
    wrong = attempt("Ada Pell", "failed", events=(call, refused, nothing, Note(role="r", text="n", at=0)))
    expected = ["failed", "null_score", "malformed", "cut_off", "tool_error", "nothing_found"]
    assert with_null_scores(outcomes_of(question, wrong), null) == expected
    runs = [{"arm": "", "outcomes": expected}, {"arm": "", "outcomes": ["finished"]}]
    table = count_outcomes([{"name": "sampled", "questions": [{"runs": runs}]}])
    assert table["columns"] == ["sampled"] and [row["name"] for row in table["rows"]] == expected
    assert all(row["message"] and row["cells"] == [("sampled", "", 1)] for row in table["rows"])


@pytest.mark.parametrize(
    ("measure", "mean", "low", "high", "p", "tone"),
    [
        ("f1", 0.2, 0.1, 0.3, 0.01, "good"),
        ("f1", -0.2, -0.3, -0.1, 0.01, "bad"),
        ("unparsed", 0.2, 0.1, 0.3, 0.01, "bad"),
        ("f1", 0.2, 0.1, 0.3, 0.125, ""),
        ("f1", 0.2, 0.0, 0.3, 0.01, ""),
        ("f1", 0.2, None, None, None, ""),
        ("new_tokens", 9.0, 8.0, 10.0, 0.001, ""),
    ],
)
def test_only_a_significant_difference_has_a_colour(
    measure: str, mean: float, low: float | None, high: float | None, p: float | None, tone: str
) -> None:
    assert tone_of(Difference(mean=mean, low=low, high=high, p=p, n=9), measure) == tone
    assert tone_of(None, measure) == tone_of(Difference(n=0), measure) == ""


def test_terms_hold_their_explanation() -> None:
    assert term("p").startswith('<span class="term" title="The probability')
    assert "Lenient: only over" in measure_term("f1_lenient") and ">F1, lenient</span>" in measure_term("f1_lenient")
    assert measure_term("calls") == "Model calls"
