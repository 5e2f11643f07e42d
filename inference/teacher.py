"""A teacher's reply in a student's tokens: agent distillation (Kang et al. 2025, arXiv 2505.17612).

The teacher reads the student's dialogue as messages in its own chat template. Its reply is text, which is encoded for
the student, so that the record and the rows are in the student's tokens as ever. What the system reads is what these
tokens say: where the student's tokenizer cannot say something, the record shows it. A teacher with the student's
tokenizer and template needs none of this: it is given the student's token ids, and its own are the labels.
"""

from __future__ import annotations

from dataclasses import replace

from ratchet.core.errors import UserError
from ratchet.inference.chat import ChatFormat, Dialogue
from ratchet.inference.completion import Completion, SamplingParams
from ratchet.inference.engine import Engine, generate
from ratchet.inference.thoughts import split_thought


async def ask_teacher(teacher: Engine, dialogue: Dialogue, params: SamplingParams, whole_reply: bool) -> Completion:
    """Return the reply of a teacher with another tokenizer or template to a dialogue of the student.

    `whole_reply`: it begins and ends with this completion. UserError where text cannot serve: an answer that is
    continued token by token, log-probabilities, calls of tools, or prompts that begin a thought that no token closes.
    """
    chat = dialogue.chat
    reasons = {
        "continues an answer token by token": not whole_reply,
        "needs log-probabilities of tokens": params.logprobs,
        "calls tools in the form of its template": dialogue.offered_tools,
        "begins its replies with a thought": bool(chat.reply_opening) and chat.thinking is None,
    }
    if reason := next((reason for reason, holds in reasons.items() if holds), None):
        raise UserError(
            f"sampling.teacher: {dialogue.role} {reason}, and the teacher has another tokenizer, chat template or "
            f"setting of thoughts than models.{dialogue.model}; take a teacher that has the same"
        )
    _, parts = teacher.format.follow(dialogue.turns, 0, str)
    prompt = [i for _, ids in parts for i in ids]
    if (tokens := teacher.format.count(prompt)) >= teacher.max_context:
        return Completion(ids=(), text="", finish_reason="context", prompt_tokens=tokens)
    reply = await generate(teacher, prompt, params, messages=dialogue.messages)
    return in_tokens_of(chat, reply, teacher.format.reply_opening, params.max_tokens)


def in_tokens_of(chat: ChatFormat, reply: Completion, opening: str, max_tokens: int) -> Completion:
    """Return a reply of another model in the tokens of a chat format, at most so many, with the cost that it had.

    A thought is written in the format's own marks, and left out where it has none. Blanks around the answer are left
    out: the template of the other model may write them. `opening`: the other format's `reply_opening`.
    """
    thought, said = split_thought(opening + reply.text)
    ids: tuple[int, ...] = ()
    ended = reply.finish_reason == "stop"
    if (marks := chat.thinking) and (thought or marks.start is None):
        start = () if marks.start is None else (marks.start, *chat.encode("\n"))
        ids = (*start, *chat.encode(thought), *(marks.closing if said or ended else ()))
    ids = (*ids, *chat.encode(said.strip()), *((chat.end_of_turn,) if ended else ()))
    cut = len(ids) > max_tokens
    ids = ids[:max_tokens]
    return replace(
        reply,
        ids=ids,
        text=chat.decode(ids[:-1] if ended and not cut else ids),
        finish_reason="length" if cut else reply.finish_reason,
        logprobs=None,
        inserted=(0, 0),
        billed_tokens=reply.new_tokens,
    )
