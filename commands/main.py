"""`ratchet COMMAND`, or `python -m ratchet COMMAND`: every command of Ratchet by one name."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ratchet.commands.subcommands import Subcommand, importing, run_subcommand
from ratchet.core.extras import DISTRIBUTION

DESCRIPTION = "Fine-tune open agent models on their own best trajectories."

COMMANDS = {
    "init": Subcommand(
        "look at documents and questions, and write a config that runs them", "ratchet.commands.init:main"
    ),
    "index": Subcommand("build a search index from documents; inspect one", "ratchet.commands.index:main"),
    "search": Subcommand("search an index or a source, and print the passages", "ratchet.commands.search:search"),
    "ask": Subcommand(
        "let a system answer a question, or each that is typed, and show its work", "ratchet.commands.ask:main"
    ),
    "prompts": Subcommand(
        "write the prompts of a config's system or judge, to edit them", "ratchet.commands.prompts:main"
    ),
    "sample": Subcommand("sample trajectories of a round's training questions", "ratchet.commands.sample:main"),
    "gateway": Subcommand(
        "sample with programs that come by themselves; count what was recorded of programs",
        "ratchet.commands.gateway:main",
    ),
    "score": Subcommand(
        "score a round's trajectories and select what to train on", "ratchet.commands.score:score_and_select"
    ),
    "whatif": Subcommand(
        "select from stored scores under other weights; writes nothing", "ratchet.commands.score:whatif"
    ),
    "rows": Subcommand("build a round's token rows and sum them up", "ratchet.commands.rows:rows"),
    "show": Subcommand("print one token row, its learnt tokens marked", "ratchet.commands.rows:show"),
    "train": Subcommand(
        "train a LoRA adapter, in one process (several: accelerate launch train.py)", "ratchet.commands.train:main"
    ),
    "evaluate": Subcommand(
        "base against adapter and baselines; tables of what is stored", "ratchet.commands.evaluate:main"
    ),
    "sweep": Subcommand("evaluate checkpoints x systems x question sets", "ratchet.commands.sweep:sweep"),
    "report": Subcommand("write a run's report.html, or follow a run", "ratchet.commands.report:main"),
    "export": Subcommand("adapter, merged weights, data set: for other programs", "ratchet.commands.export:main"),
    "selftrain": Subcommand(
        "run every stage, round after round; resumes where it was stopped", "ratchet.commands.selftrain:main"
    ),
    "plan": Subcommand(
        "memory and calls of a run before it starts, and beside what it took", "ratchet.commands.plan:main"
    ),
    "status": Subcommand("what of a run is done, and what is left", "ratchet.commands.status:status"),
    "choose": Subcommand(
        "choose among a round's evaluated adapters by reward on dev", "ratchet.commands.rounds:choose"
    ),
    "promote": Subcommand("decide on dev whether an adapter replaces its parent", "ratchet.commands.rounds:promote"),
    "trace": Subcommand("one question through every round", "ratchet.commands.rounds:trace"),
    "questions": Subcommand(
        "check a config's questions; a corpus of benchmarks' evidence", "ratchet.commands.questions:main"
    ),
    "generate": Subcommand("generate questions with answers from a corpus", "ratchet.commands.generate:main"),
    "model": Subcommand("write the small model SmolLM2-135M-Instruct into a folder", "ratchet.commands.model:model"),
    "models": Subcommand("check what works with a model, from prompts to export", "ratchet.commands.models:main"),
    "serve": Subcommand(
        "ask the systems of a config: OpenAI-compatible endpoint, a page", "ratchet.commands.serve:main"
    ),
    "serve-models": Subcommand(
        "vLLM servers of a config, and a command beside them", "ratchet.commands.model:serve_models"
    ),
    "serve-index": Subcommand("serve indexes over HTTP", "ratchet.commands.serve_index:main"),
    "mcp": Subcommand("serve a config's index and sources to MCP clients", "ratchet.commands.mcp:main"),
    "slurm": Subcommand("submit any of the stages as SLURM jobs", "ratchet.commands.slurm:main"),
}


def run(words: Sequence[str] | None = None) -> None:
    """Run the command that the first of `words` names; by default those of the process."""
    run_subcommand(COMMANDS, words, "ratchet", DESCRIPTION)


def main() -> None:
    """Run the command that the first word names, or list the commands."""
    if sys.argv[1:] == ["--version"]:
        from importlib.metadata import version

        return print(f"ratchet {version(DISTRIBUTION)}")

    if not COMMANDS.keys() & set(sys.argv[1:]):
        return run()  # it only lists the commands, or says that there is no such command
    with importing():
        from ratchet.commands.arguments import run_command
    run_command(run)
