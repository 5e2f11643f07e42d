"""The tasks and arms of the comparison, each as a config file and what it changes there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ratchet.config import Config, TrainedControl, load_config
from ratchet.errors import UserError, did_you_mean
from ratchet.records import Record

ROOT = Path(__file__).parents[2]
BASE, RANDOM, GOLD, SFT = "base", "random", "gold", "sft"
CONTROLS: dict[str, TrainedControl] = {RANDOM: "random", GOLD: "gold"}
VANILLA_RAG = "system={name: vanilla_rag, settings: {style: brief}, roles: {default: {max_tokens: 40}}}"
TASKS: dict[str, tuple[str, ...]] = {
    "demo": ("configs/demo.yaml",),
    "demo-rag": ("configs/demo.yaml", VANILLA_RAG),
    "demo-searches": ("configs/small/demo_rounds.yaml", "rounds.count=1", "sampling.pilot=null"),
    "claims": ("benchmarks/learning/claims_cot.yaml",),
    "popqa": (
        "configs/small/popqa_naive_rag.yaml",
        "index.documents=[{data}/openqa/corpus.jsonl.gz]",
        *(f"questions.{split}.path={{data}}/openqa" for split in ("train", "dev", "test")),
    ),
    "fever": (
        "benchmarks/learning/fever_cot.yaml",
        *(f"questions.{split}.path={{data}}/fever_symmetric" for split in ("train", "dev", "test")),
    ),
    "datamorgana": (
        "configs/small/datamorgana.yaml",
        "index.documents=[{data}/datamorgana/corpus.jsonl.gz]",
        "questions.train={path: {data}/datamorgana/train.jsonl, format: datamorgana, rows: [0, 60]}",
        "questions.dev={path: {data}/datamorgana/dev.jsonl, format: datamorgana, rows: [0, 40]}",
        "questions.test={path: {data}/datamorgana/dev.jsonl, format: datamorgana, rows: [400, 500]}",
    ),
}
"""By task, its config and overrides. Questions are chosen by rows, since a sample depends on the seed, which differs
between cells."""

PREFERENCE = "training.learning_rate=3.0e-4"
ARMS: dict[str, tuple[str, ...]] = {
    BASE: (),
    RANDOM: (),
    GOLD: (),
    SFT: (),
    "weighted": ("training.objective=weighted",),
    "dpo": ("training.objective=dpo", PREFERENCE),
    "dpo-action": ("training.objective=dpo", "training.preference.level=action", PREFERENCE),
    "kto": ("training.objective=kto", PREFERENCE),
    "kto-action": ("training.objective=kto", "training.preference.level=action", PREFERENCE),
    "sft-mixed": ("rewards.select.only_mixed=true",),
    "sft-difficulty": ("rewards.select.difficulty=failure_rate",),
}
"""By arm, what it changes in the task's config. Preferences move a model faster than likelihood: a lower rate."""


class Setting(Record):
    """What all cells of one output folder share."""

    data: str = "data"
    """The folder that holds openqa/, fever_symmetric/ and datamorgana/."""
    dtype: str = "float32"
    """Of the model, in sampling and training."""
    steps: int = 30
    """Training steps of every arm."""
    rows: int = 8
    """Rows of a step."""
    split: str = "test"
    """The split that is evaluated."""
    overrides: tuple[str, ...] = ()
    """Further overrides of every task's config."""


@dataclass(frozen=True)
class Cell:
    """One arm on one task, trained with one seed."""

    task: str
    arm: str
    seed: int

    @property
    def name(self) -> str:
        """Of the run folder; a path's stem and the words of overrides are made safe."""
        words = "".join(sign if sign.isalnum() or sign in "-_." else "-" for sign in self.arm)
        return words if self.arm == BASE else f"{words}-seed{self.seed}"

    def __str__(self) -> str:
        return f"{task_name(self.task)} {self.arm}" + ("" if self.arm == BASE else f" seed {self.seed}")


def cells_of(tasks: Sequence[str], arms: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
    """All cells, the first seed of everything first; the base model is not trained, so it has one cell a task."""
    return [
        Cell(task, arm, seed) for seed in seeds for task in tasks for arm in arms if arm != BASE or seed == seeds[0]
    ]


def task_name(task: str) -> str:
    """The name of a task, which may be a config file."""
    return task if task in TASKS else Path(task).stem


def task_folder(out: Path, task: str) -> Path:
    return out / task_name(task)


def pool_config(out: Path, setting: Setting, task: str) -> Config:
    """The config that a task's trajectories are sampled and scored with, once for all cells."""
    return load_config(config_file(task), pool_overrides(out, setting, task))


def cell_config(out: Path, setting: Setting, cell: Cell) -> Config:
    """The config of one cell. Raises UserError for an unknown arm."""
    preset, *more = cell.arm.split("+")
    if preset not in ARMS:
        raise UserError(f"--arms {preset}: no such arm{did_you_mean(preset, ARMS)}; known are {', '.join(ARMS)}")
    own = (f"run={task_folder(out, cell.task) / cell.name}", f"seed={cell.seed}", *ARMS[preset], *more)
    return load_config(config_file(cell.task), (*pool_overrides(out, setting, cell.task), *own))


def config_file(task: str) -> str:
    """The config file of a task, which is a name of TASKS or a path. Raises UserError for any other."""
    if task in TASKS:
        return str(ROOT / TASKS[task][0])
    if not Path(task).is_file():
        raise UserError(
            f"--tasks {task}: no such task or file{did_you_mean(task, TASKS)}; known are {', '.join(TASKS)}"
        )
    return task


def pool_overrides(out: Path, setting: Setting, task: str) -> tuple[str, ...]:
    """What changes in a task's config for sampling, and for every cell. Answers are greedy, so that arms differ by
    their training alone."""
    own = TASKS[task][1:] if task in TASKS else ()
    return (
        f"run={task_folder(out, task) / 'pool'}",
        f"models.agent.dtype={setting.dtype}",
        "evaluation.temperature=0",
        "evaluation.samples=1",
        "evaluation.baselines={}",
        "evaluation.adapters={}",
        "training.epochs=null",
        f"training.max_steps={setting.steps}",
        f"training.batch_size={setting.rows}",
        f"training.eval_steps={max(1, setting.steps // 3)}",
        *(one.replace("{data}", setting.data) for one in own),
        *setting.overrides,
    )
