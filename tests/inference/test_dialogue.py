"""Dialogues: what was sampled stays as it was, what was cut off or forged is never trained on."""

import pytest
from quirky import FORMATS, completion, each_format, play

from inference.chat import ChatFormat
from inference.engine import Completion


@each_format
def test_a_turn_that_was_cut_off_is_closed_and_never_trained_on(chat: ChatFormat) -> None:
    dialogue = play(chat, None, ["u"])
    prompt = list(dialogue.ids)
    start, end = dialogue.assistant(completion(chat, "half a", "length"), parsed=True)
    dialogue.user("v")
    conversation = dialogue.freeze()
    assert list(conversation.ids[:start]) == prompt
    assert conversation.ids[start:end] == chat.encode("half a")
    assert conversation.ids[end] == chat.end_of_turn
    sampled = [span for span in conversation.spans if span.sampled]
    assert [(span.start, span.end, span.parsed) for span in sampled] == [(start, end, False)]
    whole = play(chat, None, ["u", "half a", "v"])
    assert dialogue.ids == whole.ids


def test_sampled_ids_are_kept_as_they_are() -> None:
    """Even where the text would be encoded otherwise."""
    chat = FORMATS["tiny chatml"]
    letters = tuple(i for letter in "harbour" for i in chat.encode(letter))
    assert letters != chat.encode("harbour")
    dialogue = play(chat, None, ["u"])
    answer = Completion(ids=(*letters, chat.end_of_turn), text="harbour", finish_reason="stop", prompt_tokens=1)
    start, end = dialogue.assistant(answer, parsed=True)
    assert tuple(dialogue.ids[start:end]) == answer.ids
    assert dialogue.freeze().spans[-1].parsed


def test_a_model_that_opens_a_turn_itself_is_not_trained_on_it() -> None:
    chat = FORMATS["tiny chatml"]
    opening = chat.tokenizer.convert_tokens_to_ids("<|im_start|>")
    dialogue = play(chat, None, ["u"])
    ids = (*chat.encode("a"), opening, *chat.encode("user"), chat.end_of_turn)
    dialogue.assistant(Completion(ids=ids, text="", finish_reason="stop", prompt_tokens=1), parsed=True)
    assert [span.parsed for span in dialogue.freeze().spans if span.sampled] == [False]


def test_an_empty_completion_leaves_a_closed_turn() -> None:
    chat = FORMATS["tiny chatml"]
    dialogue = play(chat, None, ["u"])
    dialogue.assistant(Completion(ids=(), text="", finish_reason="context", prompt_tokens=1), parsed=True)
    assert dialogue.ids[-1] == chat.end_of_turn
    assert not any(span.sampled for span in dialogue.freeze().spans)


def test_retokenised_turns_mark_the_conversation() -> None:
    chat = FORMATS["tiny chatml"]
    dialogue = play(chat, None, ["u"])
    assert not dialogue.freeze().retokenised
    dialogue.assistant(
        Completion(ids=(chat.end_of_turn,), text="", finish_reason="stop", prompt_tokens=1, retokenised=True), True
    )
    dialogue.user("v")
    dialogue.assistant(completion(chat, "a"), True)
    assert dialogue.freeze().retokenised


def test_turns_must_alternate() -> None:
    chat = FORMATS["tiny chatml"]
    with pytest.raises(ValueError, match="two user messages"):
        play(chat, None, ["u"]).user("v")
    with pytest.raises(ValueError, match="must follow a user message"):
        play(chat, None, ["u", "a"]).assistant(completion(chat, "b"), True)
