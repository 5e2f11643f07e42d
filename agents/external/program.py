"""The settings of the system `external`; giving a program its task, and reading its answer: of a process, or over HTTP.

The task is one JSON object (`Task`), on the standard input or as the body of a POST, and in environment variables
(`Task.variables`). The answer (`ProgramAnswer`) is the last line of the standard output that is a JSON object, or the
body of the response; whatever else is printed is ignored. docs/guides/own-agent.md says what each name is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ratchet.agents.core.task import labels_text
from ratchet.core.config import Section
from ratchet.core.errors import UserError
from ratchet.core.http.clients import BadResponse, open_async_client, send_request
from ratchet.core.records import Question
from ratchet.core.text import plain_line, read_json
from ratchet.inference.engine import EngineError
from ratchet.inference.thoughts import without_thoughts


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
    left_out_lines: tuple[str, ...] = Field(
        ("x-anthropic-billing-header:",), exclude_if=lambda lines: lines == ("x-anthropic-billing-header:",)
    )
    """Beginnings of lines of system messages that the model is not shown: Claude Code's first may differ in each
    request."""
    port: int = Field(8400, ge=0, le=65535)
    """Port of the gateway where programs come by themselves; else it takes a free one."""

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
OURS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "RATCHET_API_KEY")
"""Variables of this process that a program with an environment of its own does not inherit."""


class ProgramError(EngineError):
    """The program failed for a reason that is not the model's: the trajectory is to be sampled again."""


class ProgramAnswer(BaseModel):
    """A program's answer, or why there is none."""

    model_config = ConfigDict(frozen=True)

    answer: str | None
    """None where it gave none."""
    explanation: str = ""
    documents: tuple[str, ...] | None = None
    problem: str = ""
    """Why there is no answer, in one line."""
    complaint: str = ""
    """The end of its standard error, where there is no answer."""


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
        labels = labels_text(question.labels)
        return cls(question.text, question.id, question.form, labels, sample, f"{own}/v1", key, role, f"{own}/search")

    def variables(self) -> dict[str, str]:
        return {
            "RATCHET_QUESTION": self.question.replace("\0", " "),
            "RATCHET_QUESTION_ID": self.question_id.replace("\0", " "),
            "RATCHET_SAMPLE": str(self.sample),
            "RATCHET_SEARCH_URL": self.search_url,
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_KEY": self.api_key,
            "OPENAI_MODEL": self.model,
            "ANTHROPIC_BASE_URL": self.base_url.removesuffix("/v1"),
            "ANTHROPIC_API_KEY": self.api_key,
        }


async def run_program(command: Sequence[str], env: Mapping[str, str], task: Task, seconds: float) -> ProgramAnswer:
    """Start the program, and end it with all of its processes when it is done, cancelled, or out of time.

    Raises ProgramError where the time was up, UserError where it cannot be started.
    """
    inherited = {name: value for name, value in os.environ.items() if name not in OURS}
    # A proxy of this machine's must not be asked for the gateway.
    local = {
        name: f"{inherited[name]},127.0.0.1" if inherited.get(name) else "127.0.0.1"
        for name in ("NO_PROXY", "no_proxy")
    }
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**inherited, **local, **task.variables(), **env},
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"system.settings.command: {command[0]} cannot be started ({reason})") from error
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    output = asyncio.ensure_future(_read_end(process.stdout, MAX_OUTPUT))
    errors = asyncio.ensure_future(_read_end(process.stderr, 4 * MAX_COMPLAINT))
    try:
        async with asyncio.timeout(seconds):
            with contextlib.suppress(ConnectionError):  # it may not read its input
                process.stdin.write(json.dumps(asdict(task)).encode())
                await process.stdin.drain()
                process.stdin.close()
            status = await process.wait()
    except TimeoutError:
        raise ProgramError(
            f"the program gave no answer in {seconds:g} s, which system.settings.timeout allows"
        ) from None
    finally:
        await _end_group(process)
        # What left the group may hold the pipes open.
        await asyncio.wait({output, errors}, timeout=GRACE)
        for reading in (output, errors):
            reading.cancel()
    complaint = _text(errors)[-MAX_COMPLAINT:].strip()
    if status:
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        last = next((line for line in reversed(complaint.splitlines()) if line.strip()), "")
        return ProgramAnswer(answer=None, problem=f"the program {how}: {plain_line(last)[:300]}", complaint=complaint)
    lines = (line for line in reversed(_text(output).splitlines()) if line.lstrip().startswith("{"))
    told = read_answer(next(lines, ""))
    return told if told.answer is not None else told.model_copy(update={"complaint": complaint})


async def ask_program(url: str, task: Task, seconds: float) -> ProgramAnswer:
    """Send the task to a running program, and wait for its answer. ProgramError where nothing answers in time."""
    try:
        async with asyncio.timeout(seconds), open_async_client(trust_env=False, timeout=None) as client:
            answer = await send_request(client, client.build_request("POST", url, json=asdict(task)), MAX_OUTPUT)
    except TimeoutError:
        raise ProgramError(f"{url}: no answer in {seconds:g} s, which system.settings.timeout allows") from None
    except (httpx.TransportError, BadResponse) as error:
        raise ProgramError(f"{url}: {str(error) or type(error).__name__}; is the program running?") from error
    if not answer.is_success:
        said = plain_line(answer.text)[:300]
        return ProgramAnswer(answer=None, problem=f"the program answered {answer.status}: {said}")
    return read_answer(answer.text)


def read_answer(text: str) -> ProgramAnswer:
    """The answer in a JSON object."""
    try:
        value = read_json(text) if text else None
        if not isinstance(value, dict) or not isinstance(value.get("answer"), str):
            raise ValueError("no JSON object with a text `answer`")
        known = {"answer", "explanation", "documents"}
        answer = ProgramAnswer.model_validate({key: value[key] for key in known & value.keys()})
        said = {name: without_thoughts(getattr(answer, name)) for name in ("answer", "explanation")}
        return answer.model_copy(update=said)
    except ValidationError as error:
        first = error.errors()[0]
        return ProgramAnswer(answer=None, problem=f"its answer's {first['loc'][0]}: {first['msg']}")
    except ValueError as error:
        return ProgramAnswer(answer=None, problem=f"the program gave no answer ({error})")


async def _read_end(stream: asyncio.StreamReader, size: int) -> bytes:
    kept = bytearray()
    while part := await stream.read(1 << 16):
        kept += part
        del kept[:-size]
    return bytes(kept)


def _text(reading: asyncio.Future[bytes]) -> str:
    ended = reading.done() and not reading.cancelled()
    return reading.result().decode(errors="replace") if ended else ""


async def _end_group(process: asyncio.subprocess.Process) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), GRACE)
