"""Answer questions and show the work: ratchet ask ["a question"] --config configs/demo.yaml [--adapter DIR].

Without a question, each line of the standard input is one; index and models are opened once. End it with Ctrl-D.
With --claim the text is a claim, and the answer SUPPORTS, REFUTES or NOT ENOUGH INFO.

ratchet prompts ...   the prompts of a config's system or judge as files (commands/prompts.py)
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ratchet.agents.core.steps import describe_step, passage_lines
from ratchet.agents.core.system import System
from ratchet.commands.arguments import config_of, config_parser
from ratchet.commands.extras import check_system_extras
from ratchet.commands.subcommands import Subcommand, run_subcommand
from ratchet.core.config import Config
from ratchet.core.console import PlainConsole
from ratchet.core.records import Event, Note, Question, Recall, Search, ToolCall, Trajectory
from ratchet.core.text import plain_line, plain_text
from ratchet.questions.labels import FEVER
from ratchet.sampling.ask import NAME, SYSTEM, SystemRunner, as_question

COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_magenta")

ABOUT = "Answer one question, or each line that is typed, and show the work."
SUBCOMMANDS = {
    "prompts": Subcommand(
        "write the prompts of a config's system or judge, to edit them", "ratchet.commands.prompts:main"
    )
}


def main(words: Sequence[str] | None = None, prog: str = "ratchet ask") -> None:
    """Run a subcommand, or answer."""
    run_subcommand(SUBCOMMANDS, words, prog, ABOUT, otherwise=answer, free_text=True)


def answer(words: Sequence[str], prog: str) -> None:
    """Answer the question of the command line, or those that are typed, and print every step of the work."""
    parser = config_parser(prog, ABOUT)
    parser.add_argument("question", nargs="?", help="default: every line of the standard input, until Ctrl-D")
    parser.add_argument("--adapter", help="a LoRA folder for the trainable roles (default: the base model)")
    parser.add_argument("--sample", action="store_true", help="sample as in training, not as in evaluation")
    parser.add_argument("--claim", action="store_true", help="verify a claim: SUPPORTS, REFUTES or NOT ENOUGH INFO")
    arguments = parser.parse_args(words)
    config, console = config_of(arguments), PlainConsole(highlight=False)

    def question_of(text: str) -> Question:
        return Question(id=NAME, text=text, form="claim", labels=FEVER) if arguments.claim else as_question(text)

    given = None if arguments.question is None else question_of(arguments.question)
    with asyncio.Runner() as loop:
        runner = open_runner(config)
        view = View(console, runner.systems[SYSTEM])
        try:
            for question in map(question_of, _typed_lines(console)) if given is None else [given]:
                asked = runner.ask(question, arguments.adapter, sample=arguments.sample, watch=view.event)
                view.end(loop.run(asked))
        finally:
            loop.run(runner.close())


def open_runner(config: Config, baselines: bool = False) -> SystemRunner:
    """The system of a config, ready to be asked. `baselines`: with those of `evaluation.baselines`."""
    check_system_extras(config)
    return SystemRunner(config, baselines)


def _typed_lines(console: Console) -> Iterator[str]:
    """The lines of the standard input that are not empty, each after a prompt where a person types them."""
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
