"""Dialogues: what was sampled stays as it was, what was cut off or forged is never trained on."""

import pytest

from ratchet.inference.chat import ChatFormat
from ratchet.inference.completion import Completion
from tests.helpers.quirky import FORMATS, completion, each_format, play


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


@pytest.mark.parametrize("keep", range(5))
def test_a_look_ahead_is_parsed_as_far_as_it_is_used(keep: int) -> None:
    chat = FORMATS["tiny chatml"]
    dialogue = play(chat, None, ["u"])
    dialogue.continue_assistant(chat.encode("ab"))
    prompt = list(dialogue.ids)
    ids = (*chat.encode("xyz"), chat.end_of_turn)
    start, end = dialogue.draft(Completion(ids, "xyz", "stop", 1), keep)
    conversation = dialogue.freeze()
    assert conversation.ids == (*prompt, *ids)
    assert (start, end) == (len(prompt), len(prompt) + keep)
    spans = [(s.start, s.end, s.parsed) for s in conversation.spans if s.sampled]
    expected = [(start, end, True), (end, len(conversation.ids), False)]
    assert spans == [span for span in expected if span[0] < span[1]]
    begun = [s for s in conversation.spans if s.author == "assistant" and not s.sampled]
    assert [chat.decode(conversation.ids[s.start : s.end]) for s in begun] == ["ab"]


def test_a_look_ahead_that_was_cut_off_is_closed_by_the_template() -> None:
    chat = FORMATS["tiny chatml"]
    dialogue = play(chat, None, ["u"])
    _, end = dialogue.draft(completion(chat, "xyz", "length"), 3)
    last = dialogue.freeze().spans[-1]
    assert (last.start, last.author, last.sampled) == (end, "template", False)
    assert dialogue.ids[-1] == chat.end_of_turn


def test_nothing_follows_a_look_ahead_and_an_ended_answer_is_not_begun() -> None:
    chat = FORMATS["tiny chatml"]
    dialogue = play(chat, None, ["u"])
    with pytest.raises(ValueError, match="has ended"):
        dialogue.continue_assistant((*chat.encode("a"), chat.end_of_turn))
    for keep in (-1, 3):
        with pytest.raises(ValueError, match="cannot use"):
            dialogue.draft(completion(chat, "a"), keep)
    dialogue.draft(completion(chat, "a"), 1)
    with pytest.raises(ValueError, match="ends its dialogue"):
        dialogue.user("v")
