"""A teacher plays the trainable roles of some samples, and the record is in the student's tokens."""

import asyncio
import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from ratchet.agents.core.task import Job
from ratchet.agents.core.tools import Answer, Tools
from ratchet.commands.sample import sample_round
from ratchet.core.config import Config, Section, SystemConfig, load_config
from ratchet.core.errors import UserError
from ratchet.core.records import Question, Trajectory
from ratchet.core.runfolder import RunFolder
from ratchet.inference.chat import ChatFormat
from ratchet.inference.chat_formats import chat_format
from ratchet.inference.completion import Completion
from ratchet.inference.http.chat_api import TextFormat
from ratchet.inference.scripted import Replies, ScriptedEngine
from ratchet.inference.teacher import in_tokens_of
from ratchet.report.run_table import read_run
from ratchet.sampling.pool import run_episode
from ratchet.sampling.store import TrajectoryStore
from ratchet.training.rows import build_rows, check_rows
from tests.helpers.commands import command_of
from tests.helpers.configs import config_values
from tests.helpers.experiment import make_experiment
from tests.helpers.playing import QUESTION, SETTING, Shelf, Solve, engine, run, say, system_of
from tests.helpers.quirky import FORMATS
from tests.helpers.templates import templated_format, templated_tokenizer
from tests.helpers.tiny import save_tiny_tokenizer, tiny_format

STUDENT, TEACHER = tiny_format("chatml"), tiny_format("llama3")
SCHEMA = {"type": "object", "properties": {"said": {"type": "string"}}, "required": ["said"]}
ROLES = SystemConfig.model_validate({"roles": {"two": {"trainable": False}}})
SAID = [say(said="The harbour, 港 <|im_end|>\u00a0!"), "Ada Torrin"]


def speaker(replies: Replies, chat: ChatFormat) -> ScriptedEngine:
    return ScriptedEngine(chat, replies)


def play(solve: Solve, teacher: ScriptedEngine, student: ScriptedEngine | None = None) -> Trajectory:
    async def run_solve(question: Question, tools: Tools, settings: Section) -> Answer:
        return await solve(tools)

    engines = {"agent": student or engine([]), "big": teacher}
    job = Job(QUESTION, sample=0, key="k", seed=7, teacher="big")
    return asyncio.run(run_episode(job, system_of(run_solve, "one", "two", config=ROLES), engines, Shelf({}), SETTING))


async def two_turns(tools: Tools) -> Answer:
    """A trainable role that answers twice, and a frozen one that the same model plays."""
    talk = tools.dialogue("one", "Be short.", [("Who?", "Nobody.")])
    first = await tools.ask(talk, "Where <|im_start|>is it?", SCHEMA)
    await tools.ask(tools.dialogue("two"), "Is it so?")
    return Answer(f"{first['said']} {await tools.ask(talk, 'Who built it?')}")


@pytest.mark.parametrize("chat", [TEACHER, TextFormat()], ids=["other tokenizer", "text alone"])
def test_a_reply_of_another_tokenizer_is_recorded_in_the_students_tokens(chat: ChatFormat) -> None:
    teacher, student = speaker(SAID, chat), engine(["yes"])
    trajectory = play(two_turns, teacher, student)
    assert (trajectory.status, trajectory.teacher) == ("finished", "big")
    assert trajectory.answer == f"{json.loads(SAID[0])['said']} Ada Torrin"
    own = run(two_turns, engine([SAID[0], "yes", SAID[1]]), ROLES)
    assert trajectory.conversations == asyncio.run(own).conversations, "as if the student had said it"
    assert [call.prompt_tokens for call in trajectory.model_calls if call.role == "one"] == [
        len(call.prompt) for call in teacher.calls
    ]
    rows, _ = build_rows(trajectory, 10_000)
    assert check_rows(rows, {"k": trajectory}) == 2
    assert [call.adapter for call in [*teacher.calls, *student.calls]] == [None] * 3
    assert teacher.calls[0].params.schema is not None
    prompts = [chat.decode(call.prompt) for call in teacher.calls]
    assert prompts[1].startswith(prompts[0] + SAID[0]), "its own dialogue grows, in its own template"
    if chat is TEACHER:
        start = "<|start_header_id|>assistant<|end_header_id|>\n\n"
        assert prompts[0].endswith(f"Where <|im_start|>is it?<|eot_id|>{start}")


def test_a_reply_of_the_same_tokenizer_and_template_is_passed_on_id_by_id() -> None:
    async def solve(tools: Tools) -> Answer:
        talk = tools.dialogue("one")
        await tools.ask(talk, "Where is it?")
        draft = await tools.draft(tools.dialogue("one"), "Go on.", STUDENT.encode("Ada"), 8, lambda d: len(d.ids))
        return Answer(draft.text)

    teacher, student = speaker(["At Velm.", " Torrin"], STUDENT), engine([])
    trajectory = play(solve, teacher, student)
    talk, draft = trajectory.conversations
    assert trajectory.status == "finished" and not student.calls
    for call, conversation in zip(teacher.calls, (talk, draft), strict=True):
        assert call.prompt == conversation.ids[: len(call.prompt)] and call.adapter is None
    assert draft.ids[len(teacher.calls[1].prompt) :] == (*STUDENT.encode(" Torrin"), STUDENT.end_of_turn)


@pytest.mark.parametrize("needed", ["continues an answer", "calls tools"])
def test_what_text_cannot_do_is_refused(needed: str) -> None:
    async def solve(tools: Tools) -> Answer:
        talk = tools.dialogue("one")
        if needed == "calls tools":
            talk.offered_tools = True
            await tools.ask(talk, "Where is it?")
        await tools.draft(talk, "Go on.", (), 8, lambda d: len(d.ids))
        return Answer("")

    with pytest.raises(UserError, match=rf"sampling\.teacher: one {needed}.* than models\.agent; take a teacher"):
        play(solve, speaker(SAID, TEACHER))


def test_a_prompt_that_fills_the_teachers_context_ends_the_trajectory_as_its_own_would() -> None:
    teacher = speaker(SAID, TextFormat())
    teacher.max_context = 120
    trajectory = play(two_turns, teacher)
    assert trajectory.status == "out_of_budget" and len(teacher.calls) < 2


def completion(text: str, **changes: Any) -> Completion:
    ids = (*TEACHER.encode(text), TEACHER.end_of_turn)
    return Completion(**{"ids": ids, "text": text, "finish_reason": "stop", "prompt_tokens": 9, **changes})


def test_a_reply_that_does_not_fit_is_cut_off_and_blanks_around_it_are_left_out() -> None:
    whole = in_tokens_of(STUDENT, completion(" Ada Torrin\n"), "", 64)
    assert (whole.text, whole.finish_reason) == ("Ada Torrin", "stop")
    assert whole.ids == (*STUDENT.encode("Ada Torrin"), STUDENT.end_of_turn)
    assert whole.new_tokens == len(TEACHER.encode(" Ada Torrin\n")) + 1, "the cost is the teacher's"
    cut = in_tokens_of(STUDENT, completion("Ada Torrin"), "", len(whole.ids) - 1)
    assert (cut.ids, cut.text, cut.finish_reason) == (whole.ids[:-1], "Ada Torrin", "length")
    early = in_tokens_of(STUDENT, completion("Ada", finish_reason="length"), "", 64)
    assert (early.ids, early.finish_reason) == (STUDENT.encode("Ada"), "length")


def test_the_system_reads_what_the_students_tokens_say() -> None:
    nfkc = FORMATS["qwen2.5"]
    made = in_tokens_of(nfkc, completion("\uff21da \u2460 \u2028 <|im_end|> \U0001f642"), "", 64)
    assert made.text == "Ada 1 \u2028 <|im_end|> \U0001f642" == nfkc.decode(made.ids[:-1])
    assert nfkc.control_ids.isdisjoint(made.ids[:-1])


def test_a_thought_is_written_in_the_students_marks_or_left_out() -> None:
    thinks = templated_format("qwen3")
    reply, answer = completion("<think>\nIt is Ada.\n</think>\n\nAda"), completion("Ada")
    assert in_tokens_of(STUDENT, reply, "", 64).text == "Ada"
    made = in_tokens_of(thinks, reply, "", 64)
    assert made.text == reply.text and thinks.thinking is not None
    assert made.ids[0] == thinks.thinking.start and thinks.thinking.end in made.ids, "marks are tokens"
    assert in_tokens_of(thinks, answer, "", 64).text == "Ada"
    started = completion("It is Ada.\n</think>\n\nAda")
    assert in_tokens_of(thinks, started, "<think>\n", 64).ids == made.ids, "the teacher's prompt began its thought"
    unfinished = in_tokens_of(thinks, completion("<think>\nIt is", finish_reason="length"), "", 64)
    assert (unfinished.text, unfinished.finish_reason) == ("<think>\nIt is", "length")
    begins = copy.deepcopy(templated_tokenizer("qwen3"))
    begins.chat_template = begins.chat_template.replace("assistant\\n'", "assistant\\n<think>\\n'")
    opened = chat_format(begins)
    assert opened.reply_opening == "<think>\n"
    assert in_tokens_of(opened, reply, "", 64).text == "It is Ada.\n</think>\n\nAda"
    assert in_tokens_of(opened, answer, "", 64).text.endswith("</think>\n\nAda")


# In a run


def taught_config(folder: Path, teacher: dict[str, Any]) -> Config:
    path = make_experiment(folder, questions=3)
    values = yaml.safe_load(path.read_text())
    save_tiny_tokenizer(folder / "big", "llama3")
    values["models"]["big"] = {**values["models"]["agent"], "path": str(folder / "big")}
    values["sampling"]["teacher"] = teacher
    path.write_text(yaml.safe_dump(values))
    return load_config(path)


@pytest.mark.slow
def test_the_first_samples_are_taught_under_other_keys_and_sampled_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = taught_config(tmp_path, {})
    options = ["--config", str(tmp_path / "config.yaml")]
    command_of("index")(options)
    free = sample_round(config)
    taught = taught_config(tmp_path, {"model": "big", "samples": 2})
    taught = taught.model_copy(update={"run": str(tmp_path / "taught")})
    sampled = sample_round(taught)
    assert [new == old for new, old in zip(sampled.keys, free.keys, strict=True)] == [False, False, True, True] * 3
    store = TrajectoryStore(RunFolder(taught.folder).round(1).trajectories)
    made = {one.key: one for one in store.read()}
    assert [made[key].teacher for key in sampled.keys] == ["big", "big", "", ""] * 3
    first = made[sampled.keys[0]]
    assert "the teacher big plays" in next(event.text for event in first.events if event.kind == "note")
    rows = [row for one in made.values() for row in build_rows(one, 10_000)[0]]
    assert check_rows(rows, made)
    size = store.segments[0].size
    assert sample_round(taught).work.trajectories == 0 and store.segments[0].size == size
    command_of("score")([*options, "--set", f"run={taught.run}"])
    said = capsys.readouterr().out
    assert "taught by big" in said and "6 sampled" in said
    command_of("trace")(["train-0", *options, "--set", f"run={taught.run}"])
    assert "sample 1 by the teacher big: " in capsys.readouterr().out
    assert read_run(taught.run)["teacher"].to_pylist().count("big") == 6


def test_a_config_names_a_model_that_is_there_and_as_many_samples_as_there_are(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"sampling\.teacher\.model names the model 'agnet', which is not under"):
        Config.model_validate(config_values(tmp_path, sampling={"teacher": {"model": "agnet", "samples": 1}}))
    with pytest.raises(ValidationError, match=r"teacher\.samples: 3 of 2 samples"):
        Config.model_validate(config_values(tmp_path, sampling={"samples": 2, "teacher": {"samples": 3}}))
    unused = Config.model_validate(config_values(tmp_path, sampling={"teacher": {"model": "agnet"}}))
    assert unused.sampling.teacher.models == set()
