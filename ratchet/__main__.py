"""`ratchet COMMAND`, or `python -m ratchet COMMAND`: every command of Ratchet by one name."""

from __future__ import annotations

import sys

from ratchet.subcommands import Subcommand, run_subcommand

DESCRIPTION = "Fine-tune open agent models on their own best trajectories."

COMMANDS = {
    "init": Subcommand("look at documents and questions, and write a config that runs them", "tools.init:main"),
    "index": Subcommand(
        "build a search index from documents; add, remove, inspect, capacity", "index_build.__main__:main"
    ),
    "search": Subcommand("search an index or a source, and print the passages", "retrieval.__main__:search"),
    "ask": Subcommand(
        "let a system answer a question, or each that is typed, and show its work", "agents.__main__:main"
    ),
    "prompts": Subcommand(
        "write the prompts of a config's system or judge, to edit them", "rewards.prompt_command:main"
    ),
    "sample": Subcommand("sample trajectories of a round's training questions", "sampling.__main__:main"),
    "gateway": Subcommand(
        "sample with programs that come by themselves; count what was recorded of programs", "sampling.gateway:main"
    ),
    "score": Subcommand(
        "score a round's trajectories and select what to train on", "rewards.__main__:score_and_select"
    ),
    "whatif": Subcommand("select from stored scores under other weights; writes nothing", "rewards.__main__:whatif"),
    "rows": Subcommand("build a round's token rows and sum them up", "training.__main__:rows"),
    "show": Subcommand("print one token row, its learnt tokens marked", "training.__main__:show"),
    "train": Subcommand("train a LoRA adapter, in one process (several: accelerate launch train.py)", "train:main"),
    "evaluate": Subcommand("base against adapter and baselines; tables of what is stored", "evaluation.__main__:main"),
    "sweep": Subcommand("evaluate checkpoints x systems x question sets", "evaluation.sweep.command:sweep"),
    "leaderboard": Subcommand(
        "runs that were evaluated on the same questions, side by side", "evaluation.tables.leaderboard:leaderboard"
    ),
    "report": Subcommand("write a run's report.html", "report.__main__:main"),
    "export": Subcommand("adapter, merged weights, GGUF, data set: to other programs or a hub", "export.__main__:main"),
    "watch": Subcommand("serve a page over a run folder while it is written, or later", "report.watch.command:main"),
    "logs": Subcommand(
        "write trajectories as Inspect logs, OpenTelemetry spans or Parquet", "report.logs.command:main"
    ),
    "selftrain": Subcommand("run every stage, round after round; resumes where it was stopped", "selftrain:main"),
    "plan": Subcommand(
        "memory and hours of a run before it starts, and beside what it took", "rounds.plan.command:main"
    ),
    "status": Subcommand("what of a run is done, and what is left", "selftrain:status"),
    "choose": Subcommand("choose among a round's evaluated adapters by reward on dev", "rounds.__main__:choose"),
    "promote": Subcommand("decide on dev whether an adapter replaces its parent", "rounds.__main__:promote"),
    "trace": Subcommand("one question through every round", "rounds.__main__:trace"),
    "questions": Subcommand("check a config's questions; a corpus of benchmarks' evidence", "questions.__main__:main"),
    "generate": Subcommand("generate questions with answers from a corpus", "questions.generate.__main__:main"),
    "model": Subcommand("write the small model SmolLM2-135M-Instruct into a folder", "inference.__main__:model"),
    "serve": Subcommand("ask the systems of a config: OpenAI-compatible endpoint, MCP, a page", "serve.__main__:main"),
    "serve-models": Subcommand(
        "vLLM servers of a config, and a command beside them", "inference.__main__:serve_models"
    ),
    "serve-index": Subcommand("serve indexes over HTTP", "retrieval.serving.server:main"),
    "mcp": Subcommand("serve a config's index and sources to MCP clients", "retrieval.serving.mcp:main"),
    "memory": Subcommand("inspect a run's evidence memory", "retrieval.memory.command:main"),
    "slurm": Subcommand("submit any of the stages as SLURM jobs", "slurm.__main__:main"),
}


def main() -> None:
    """Run the command that the first word names, or list the commands."""

    def run() -> None:
        run_subcommand(COMMANDS, None, "ratchet", DESCRIPTION)

    if not COMMANDS.keys() & set(sys.argv[1:]):
        return run()  # it only lists the commands, or says that there is no such command
    from ratchet.command import run_command

    run_command(run)


if __name__ == "__main__":
    main()
