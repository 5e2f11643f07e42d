"""The settings of the system `external`; giving a program its task, and reading its answer: of a process, or over HTTP.

The task is one JSON object (`Task`), on the standard input or as the body of a POST, and in environment variables
(`environment`). The answer (`AnswerFields`) is the last JSON object with an `answer` that begins a line of the
standard output, or of the response; what else is printed is ignored. docs/guides/own-agent.md says what each name is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any
from urllib.parse import quote

import httpx
from pydantic import BaseModel, BeforeValidator, Field, ValidationError, model_validator

from ratchet.agents.core.task import labels_text
from ratchet.core.config import Section
from ratchet.core.errors import UserError
from ratchet.core.http.clients import BadResponse, open_async_client, send_request
from ratchet.core.records import Question
from ratchet.core.text import MAX_LEVELS, plain_line, short_line, storable_value
from ratchet.inference.engine import EngineError
from ratchet.inference.serving import subreaper
from ratchet.inference.thoughts import without_thoughts

BILLING = ("x-anthropic-billing-header:",)


class Settings(Section):
    """The program, and what it may use. Without `command` and `url`, programs come to the gateway by themselves."""

    command: tuple[str, ...] = ()
    """Program and arguments, started for every trajectory without a shell, in the working directory."""
    url: str | None = None
    """Address of a running program that answers a POST for every trajectory."""
    timeout: float = Field(600.0, gt=0)
    """Seconds that a trajectory may take; without `command` and `url`, seconds without a request once it has begun."""
    env: dict[str, str] = Field(default={})
    """Further environment variables of the program."""
    files: tuple[str, ...] = ()
    """Further files of the program. A change of any, or of those of `command`, samples again."""
    roles: tuple[str, ...] = Field(("agent",), min_length=1)
    """Roles of the program's model calls: a request plays the one that it names as its `model`, or else the first."""
    source: str = "index"
    """Where it searches: `index`, or a name under `sources`."""
    documents: int = Field(3, gt=0)
    """Number of documents of a search that names none."""
    left_out_lines: tuple[Annotated[str, Field(min_length=1)], ...] = Field(BILLING, exclude_if=BILLING.__eq__)
    """Beginnings of lines of system messages that the model is not shown: Claude Code's first may differ in each
    request."""
    port: int = Field(8400, gt=0, le=65535)
    """Port of the gateway where programs come by themselves."""

    @model_validator(mode="after")
    def _check_program(self) -> Settings:
        if self.command and self.url:
            raise ValueError("name a command or a url, not both")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url: {self.url!r} is not an address such as http://127.0.0.1:9000/answer")
        return self


MAX_OUTPUT = 1 << 20
"""Bytes of a program's output that are read: the last ones of a process, the first ones of a response."""
MAX_COMPLAINT = 2000
"""Characters of its standard error that are kept."""
GRACE = 3.0
"""Seconds between SIGTERM and SIGKILL."""
NOT_INHERITED = {
    *("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "RATCHET_API_KEY"),
    *("OPENAI_API_TYPE", "OPENAI_PROXY", "ANTHROPIC_PROXY", "ANTHROPIC_AUTH_TOKEN"),
    *("CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX"),
}
"""Variables of this process that a program does not inherit: it may have an environment of its own, and by those of
OpenAI's and Anthropic's clients it would ask another server than the gateway."""
ANTHROPIC_ADDRESSES = ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_URL", "ANTHROPIC_API_BASE")


class ProgramError(EngineError):
    """The program failed for a reason that is not the model's: the trajectory is to be sampled again."""


def _as_text(value: object) -> object:
    """The texts of a program: numbers are read as texts, and the thoughts of a model that it passes on are left out."""
    value = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
    return without_thoughts(value) if isinstance(value, str) else value


Text = Annotated[str, BeforeValidator(_as_text)]


class Body(BaseModel):
    """A JSON object that a program sends, with valid texts."""

    @model_validator(mode="before")
    @classmethod
    def _with_valid_texts(cls, body: Any) -> Any:
        return storable_value(body, levels=2 * MAX_LEVELS)  # that of a schema is the schema's own


class AnswerFields(Body):
    """A program's own words: a JSON object with an `answer`."""

    answer: Text
    explanation: Annotated[Text, BeforeValidator(lambda value: "" if value is None else value)] = ""
    documents: tuple[Text, ...] | None = None
    """The ids of the documents that support it."""


class ProgramAnswer(AnswerFields):
    """A program's answer, or why there is none."""

    answer: str | None = None  # type: ignore[assignment]
    problem: str = ""
    """Why there is no answer, or what it ran into, in one line."""
    complaint: str = ""
    """The end of its standard error, where there is no answer."""
    timed_out: bool = False
    """Its time was up; the answer is what it had printed by then."""


@dataclass(frozen=True)
class Task:
    """The task that a program is given. The right answer is not in it."""

    question: str
    question_id: str
    form: str
    labels: str
    """Labels of a choice, one a line, with its meaning."""
    sample: int
    base_url: str
    api_key: str
    model: str
    search_url: str

    @classmethod
    def of(cls, question: Question, sample: int, address: str, key: str, role: str) -> Task:
        """`address`: the gateway's. `key`: the trajectory's name there."""
        key = quote(key, safe=":")  # a header holds no more characters than an address
        own = f"{address}/t/{key}"
        asked = question.text, question.id, question.form, labels_text(question.labels)
        return cls(*asked, sample, f"{own}/v1", key, role, f"{own}/search")


def environment(task: Task, own: Mapping[str, str]) -> dict[str, str]:
    """The environment of a program. `own`: the config's variables. No proxy is asked for the gateway."""
    variables = {
        **{name: value for name, value in os.environ.items() if name not in NOT_INHERITED},
        "RATCHET_QUESTION": task.question.replace("\0", " "),
        "RATCHET_QUESTION_ID": task.question_id.replace("\0", " "),
        "RATCHET_SAMPLE": str(task.sample),
        "RATCHET_SEARCH_URL": task.search_url,
        "OPENAI_MODEL": task.model,
        **dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY"), task.api_key),
        **dict.fromkeys(("OPENAI_BASE_URL", "OPENAI_API_BASE"), task.base_url),
        **dict.fromkeys(ANTHROPIC_ADDRESSES, task.base_url.removesuffix("/v1")),
        **own,
    }
    for name in ("NO_PROXY", "no_proxy"):
        if variables.get(name) != "*":
            variables[name] = ",".join(filter(None, (variables.get(name), "127.0.0.1")))
    return variables


async def run_program(command: Sequence[str], env: Mapping[str, str], task: Task, seconds: float) -> ProgramAnswer:
    """Start the program, and end it with all of its processes when it is done, cancelled, or out of time.

    Raises UserError where it cannot be started. Elsewhere than on Linux, what left its process group is not ended.
    """
    variables = environment(task, env)
    reaper = sys.executable, "-I", subreaper.__file__, str(os.getpid()), str(GRACE)
    try:
        if not shutil.which(command[0], path=variables.get("PATH")):
            raise FileNotFoundError("No such file or directory, or not executable")
        process = await asyncio.create_subprocess_exec(
            *(reaper if sys.platform == "linux" else ()),
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=variables,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise UserError(f"system.settings.command: {command[0]} cannot be started ({error})") from error
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    output, errors = bytearray(), bytearray()
    reading = [
        asyncio.ensure_future(_read_end(process.stdout, output, MAX_OUTPUT)),
        asyncio.ensure_future(_read_end(process.stderr, errors, 4 * MAX_COMPLAINT)),
    ]
    status, timed_out = 0, False
    try:
        async with asyncio.timeout(seconds):
            with contextlib.suppress(ConnectionError):  # it may not read its input
                process.stdin.write(json.dumps(asdict(task)).encode())
                await process.stdin.drain()
                process.stdin.close()
            status = await process.wait()
    except TimeoutError:
        timed_out = True
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
            await asyncio.wait([*reading, asyncio.ensure_future(process.wait())], timeout=2 * GRACE)
        for pipe in reading:
            pipe.cancel()
    complaint = errors.decode(errors="replace")[-MAX_COMPLAINT:].strip()
    if status:
        killer = status - 128 if status > 128 else -status  # as a shell and as Python give it
        is_signal = killer in signal.valid_signals()
        how = f"was killed by signal {killer}" if is_signal else f"ended with status {status}"
        last = plain_line(complaint.rpartition("\n")[2])[:300]
        return ProgramAnswer(problem=f"the program {how}: {last}", complaint=complaint)
    given = read_answer(output.decode(errors="replace"))
    if timed_out:
        given = given.model_copy(update={"problem": _late("the program", seconds), "timed_out": True})
    return given.model_copy(update={"complaint": complaint}) if given.problem else given


def _late(who: str, seconds: float) -> str:
    return f"{who} did not end in {seconds:g} s, which system.settings.timeout allows"


async def ask_program(url: str, task: Task, seconds: float) -> ProgramAnswer:
    """Send the task to a running program, and wait for its answer. ProgramError where nothing answers."""
    try:
        async with asyncio.timeout(seconds), open_async_client(trust_env=False, timeout=None) as client:
            answer = await send_request(client, client.build_request("POST", url, json=asdict(task)), MAX_OUTPUT)
    except TimeoutError:
        return ProgramAnswer(problem=_late(url, seconds), timed_out=True)
    except (httpx.TransportError, BadResponse) as error:
        raise ProgramError(f"{url}: {str(error) or type(error).__name__}; is the program running?") from error
    if not answer.is_success:
        return ProgramAnswer(problem=f"the program answered {answer.status}: {plain_line(answer.text)[:300]}")
    return read_answer(answer.text)


OBJECT = re.compile(r"(?:^|\r)[ \t]*(?=\{)", re.MULTILINE)
"""Where a line begins with a JSON object."""


def read_answer(output: str) -> ProgramAnswer:
    """The answer in the last JSON object that has one, of those that begin a line; it may stand on several lines."""
    last: dict[str, Any] = {}
    end = 0
    for opening in OBJECT.finditer(output):
        if opening.end() < end:
            continue
        with contextlib.suppress(ValueError, RecursionError):
            value, end = json.JSONDecoder().raw_decode(output, opening.end())
            last = value if "answer" in value else last
    if not last:
        printed = short_line(output.strip().rpartition("\n")[2]) or "nothing"
        return ProgramAnswer(problem=f"the program gave no JSON object with an `answer`; its last line is: {printed}")
    try:
        return ProgramAnswer(**AnswerFields.model_validate(last).model_dump())
    except ValidationError as error:
        first = error.errors()[0]
        name, given = ".".join(map(str, first["loc"])) or "answer", short_line(repr(first["input"]))
        return ProgramAnswer(problem=f"the program's `{name}`: {first['msg']} ({given})")


async def _read_end(stream: asyncio.StreamReader, kept: bytearray, size: int) -> None:
    while part := await stream.read(1 << 16):
        kept += part
        del kept[:-size]
