"""A program of your own, in any framework or language: its model calls go through a gateway that records every token.

The gateway is an OpenAI-compatible server on 127.0.0.1. The program gets a question, the gateway's address and that of
a search, and prints its answer (`program.py`); it is started for every trajectory (`command`), asked over HTTP (`url`),
or finds the open trajectories itself (neither: `app.py`). From there on it is a system like the others.

Budget: the program's own, within `timeout` seconds, the roles' max_tokens and the model's context.

- What the model says is recorded as the ids that it sampled, which alone are trained on. A message that the program
  sends back is compared with what the model said, and stands for these ids. Where it differs, the history is one that
  the program rewrote: a new conversation begins, with that text as context (`Conversation.foreign_turns`).
- Temperature and top_p are the run's, whatever a request says. A tool's call is read from the model's text in the form
  of its chat template, and forced by a grammar where `tool_choice` says so; a template without tools refuses some.
- A program that crashes or prints no answer after a model's words is unparsed, and one that runs into its time limit
  is out of budget: the words may be the cause, and to sample until it works would be a bias. It failed, and is sampled
  again, where no model answered it through the gateway, with an answer too, or the engine failed.

Its files and settings are part of what identifies a trajectory; the packages that it imports are not.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.agents.core.episode import shown_passages
from ratchet.agents.core.labels import find_label, require_label
from ratchet.agents.core.system import SystemSpec
from ratchet.agents.core.tools import Answer, OutOfBudget, Tools, Unparsed
from ratchet.agents.external.program import ProgramAnswer, ProgramError, Settings, Task, ask_program, run_program
from ratchet.core.errors import UserError
from ratchet.core.installed import need_extra
from ratchet.core.records import ModelCall, Question, content_key
from ratchet.core.runfolder import file_digest
from ratchet.core.text import short_line

if TYPE_CHECKING:
    from ratchet.agents.external.recording import Recording


def digest_of(settings: Settings) -> str:
    """The digest of the program's files: those among the words of its command, without its interpreter, and `files`."""
    for name in settings.files:
        if not Path(name).is_file():
            raise UserError(f"system.settings.files: there is no file {name}")
    names = [*(name for name in settings.command[1:] if Path(name).is_file()), *settings.files]
    return content_key([(Path(name).name, file_digest(Path(name))) for name in names])[:16] if names else ""


async def solve(question: Question, tools: Tools, settings: Settings) -> Answer:
    """Let the program answer."""
    need_extra("server", "the gateway")
    from ratchet.agents.external.app import open_gateway
    from ratchet.agents.external.recording import Recording

    role, comes_itself = settings.roles[0], not (settings.command or settings.url)
    async with open_gateway(settings.port if comes_itself else 0) as gateway:
        recording = Recording(question, tools, settings)
        async with gateway.recorded(recording, f"{question.id}:{tools.sample}" if comes_itself else None) as name:
            task = Task.of(question, tools.sample, gateway.address, name, role)
            if settings.command:
                work = run_program(settings.command, settings.env, task, settings.timeout)
            elif settings.url is not None:
                work = ask_program(settings.url, task, settings.timeout)
            else:
                work = recording.watch(settings.timeout)
            working = asyncio.ensure_future(work)
            try:
                await asyncio.wait({working, recording.ended}, return_when=asyncio.FIRST_COMPLETED)
                given = recording.ended.result() if recording.ended.done() else working.result()
            finally:
                working.cancel()
                await asyncio.gather(working, return_exceptions=True)
    return _answer(question, tools, recording, given, role)


PAST_GATEWAY = (
    "set its client's base URL to OPENAI_BASE_URL or ANTHROPIC_BASE_URL of its environment (docs/guides/own-agent.md)"
)


def _answer(question: Question, tools: Tools, recording: Recording, given: ProgramAnswer, role: str) -> Answer:
    """The answer with its documents. Raises what its absence means: ProgramError, OutOfBudget, Unparsed."""
    if given.complaint:
        tools.note(role, f"the end of the program's standard error:\n{given.complaint}")
    seconds = [event.seconds for event in tools.events if isinstance(event, ModelCall)]
    if recording.out_of_budget and (given.answer is None or not seconds):
        raise OutOfBudget(role, f"{recording.out_of_budget}; then {given.problem or 'the program gave an answer'}")
    if not seconds:
        why = f"{given.problem or 'the program gave an answer'}; no model answered it through the gateway"
        raise ProgramError(f"{role}: {why}: {recording.refusal or PAST_GATEWAY}")
    if given.answer is None and not given.timed_out:
        raise Unparsed(role, given.problem)
    found = recording.found
    if given.documents is None:  # the program names none: all that it found and showed to a model
        passages = shown_passages(found.values(), tools.shown)
    else:
        passages = tuple(found[id] for id in given.documents if id in found)
        if unknown := [id for id in given.documents if id not in found]:
            tools.note(role, short_line(f"left out documents that no search of it found: {', '.join(unknown)}"))
    answer = Answer(given.answer or "", passages, explanation=given.explanation)
    if question.labels:
        label = find_label(answer.text, question.labels)
        answer = replace(answer, text=label, explanation=answer.explanation or answer.text)
    if given.timed_out:
        spent = f"{given.problem}; {len(seconds)} model calls took {sum(seconds):.1f} s"
        return replace(answer, status="out_of_budget", error=f"{role}: {spent}")
    return require_label(tools, answer, role) if question.labels else answer


SYSTEM = SystemSpec(
    Settings, solve, lambda settings: settings.roles, names_evidence=True, embeds=True, digest=digest_of
)
