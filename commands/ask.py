"""Answer questions and show the work, and write the prompts that a config's system or judge uses.

Without a question, each line of the standard input is one; index and models are opened once. With --claim the text is a
claim, and the answer SUPPORTS, REFUTES or NOT ENOUGH INFO.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ratchet.agents.core.prompts import write_prompts
from ratchet.agents.core.steps import describe_step, passage_lines
from ratchet.agents.core.system import System, load_system
from ratchet.commands.checks import check_system_extras
from ratchet.core.config import Config
from ratchet.core.errors import UserError, did_you_mean
from ratchet.core.records import Event, Note, Question, Recall, Search, ToolCall, Trajectory
from ratchet.core.tables import PlainConsole
from ratchet.core.text import plain_line, plain_text
from ratchet.questions.labels import FEVER
from ratchet.rewards.prompts import judge_prompts
from ratchet.sampling.ask import NAME, SYSTEM, SystemRunner, as_question

COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_magenta")

REWARDS = "rewards"
"""The key of the judge's prompts."""


def ask(config: Config, options: argparse.Namespace) -> None:
    """Answer the question of the command line, or those that are typed, and print every step of the work."""
    console = PlainConsole(highlight=False)

    def question_of(text: str) -> Question:
        return Question(id=NAME, text=text, form="claim", labels=FEVER) if options.claim else as_question(text)

    given = None if options.question is None else question_of(options.question)
    with asyncio.Runner() as loop:
        runner = open_runner(config)
        view = View(console, runner.systems[SYSTEM])
        try:
            for question in map(question_of, _typed_lines(console)) if given is None else [given]:
                asked = runner.ask(question, options.adapter, sample=options.sample, watch=view.event)
                view.end(loop.run(asked))
        finally:
            loop.run(runner.close())


def open_runner(config: Config, baselines: bool = False) -> SystemRunner:
    """Open the system of a config, with `baselines` also those of `evaluation.baselines`."""
    check_system_extras(config)
    return SystemRunner(config, baselines)


def _typed_lines(console: Console) -> Iterator[str]:
    if not sys.stdin.isatty():
        for line in sys.stdin:
            if line.strip():
                console.print(Text(f"> {plain_line(line.strip())}", "bold"), soft_wrap=True)
                yield line.strip()
        return
    print("write one question on each line; Ctrl-D ends the command", flush=True)
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            return print()
        if line:
            yield line


class View:
    """Prints a trajectory as it happens. What models and documents say is printed as text, never as markup."""

    def __init__(self, console: Console, system: System) -> None:
        self.console = console
        self.colours = dict(zip(system.roles, COLOURS * len(system.roles), strict=False))
        self.width = max(map(len, system.roles))

    def event(self, event: Event) -> None:
        step = describe_step(event)
        acts = isinstance(event, Search | ToolCall | Recall)
        self._line(step.role, step.text, "bold" if acts else "italic" if isinstance(event, Note) else "")
        if step.problem:
            self._line("" if acts else step.role, step.problem, "red")
        elif step.found:
            self._line("", step.found, "dim")
        for line in passage_lines(step.passages) if step.passages is not None else ():
            self._line("", line, "dim")

    def end(self, trajectory: Trajectory) -> None:
        calls, searches = trajectory.model_calls, trajectory.searches
        others = len(trajectory.tool_calls) - len(searches)
        prompt, new = sum(c.prompt_tokens for c in calls), sum(c.new_tokens for c in calls)
        cached, thought = sum(c.cached_tokens for c in calls), sum(c.thought_tokens for c in calls)
        self.console.print()
        self.console.print(Text(plain_text(trajectory.answer) or "(no answer)", "bold"), soft_wrap=True)
        status = f"{trajectory.status}: {trajectory.error}" if trajectory.error else trajectory.status
        self.console.print(
            Text(plain_text(status), "green" if trajectory.status == "finished" else "red"), soft_wrap=True
        )
        for passage in trajectory.passages:
            self.console.print(Text(plain_line(f"supported by {passage.id} {passage.title}"), "dim"))
        self.console.print(
            f"model calls {len(calls)}, searches {len(searches)}, "
            + (f"other tool calls {others}, " if others else "")
            + f"prompt tokens {prompt} ({cached} cached), "
            f"new tokens {new}{f' ({thought} of thoughts)' if thought else ''}, seconds {trajectory.seconds:.1f}",
            style="dim",
            soft_wrap=True,
        )

    def _line(self, role: str, text: str, style: str = "") -> None:
        name, said = Text(role.rjust(self.width) + "  ", self.colours.get(role, "")), Text(plain_text(text), style)
        if not self.console.is_terminal:
            return self.console.print(name.append_text(said), soft_wrap=True)
        beside = Table.grid()  # a long text goes on below its first line, not below the role
        beside.add_row(name, said)
        self.console.print(beside)


def prompts(config: Config, options: argparse.Namespace) -> None:
    """Write one file for each prompt, and say how a config names the folder."""
    keys = [*config.systems, REWARDS]
    if options.system not in keys:
        raise UserError(f"--system {options.system}: the config has no such system{did_you_mean(options.system, keys)}")
    if options.system == REWARDS:
        name, texts = "the judge", judge_prompts(config.rewards)
    else:
        system = load_system(config.systems[options.system], options.system)
        name, texts = system.name, system.prompts
    folder = Path(options.out)
    files = list(write_prompts(texts, folder))
    print(
        f"{len(files)} prompts of {name} are in {folder}; edit them, delete the files that "
        "you do not change, and add to the config:"
    )
    print(f"{options.system}.prompts: {folder}")
