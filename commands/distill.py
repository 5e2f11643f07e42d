"""ratchet distill --config STUDENT.yaml --from TEACHER.yaml: teach one system what the agents of another run answered.

It writes trajectories and a selection into round 1 of the student's run folder. The commands that follow have the
student's config too: `ratchet train`, `ratchet evaluate` and `ratchet report`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.commands.arguments import add_best_round_argument, config_of, config_parser, config_words, round_or_best
from ratchet.core.escape import shell_line

ABOUT = """Write what the agents of a run answered as training trajectories of this config's system, which answers in
one call: its prompt with the documents that the agents returned, and their answer as its action."""


def main(words: Sequence[str] | None = None, prog: str = "ratchet distill") -> None:
    """Run `ratchet distill`."""
    parser = config_parser(prog, ABOUT)
    parser.add_argument(
        "--from", dest="teacher", required=True, metavar="FILE", help="the config of the agents, whose run is selected"
    )
    add_best_round_argument(parser, "the agents' round")
    arguments = parser.parse_args(words)
    config = config_of(arguments)
    # Late: the command's help needs none of it.
    from ratchet.commands.config import open_config
    from ratchet.core.runfolder import RunFolder
    from ratchet.questions.manifest import open_run
    from ratchet.training.distillation import distill
    from ratchet.training.kept import KeptTrajectories, LearntRound, read_kept_selection
    from ratchet.training.task import check_model_is_open

    check_model_is_open(config.training.model, config.models[config.training.model])
    teacher_run = RunFolder(open_config(arguments.teacher, [], arguments.command).folder)
    agents = round_or_best(teacher_run, arguments.round)
    folder = open_run(config, ("train",)).round(1)
    teacher = KeptTrajectories(LearntRound(agents), read_kept_selection(agents))
    selection = distill(teacher, config, folder)
    print(
        f"{folder.selection}: {len(selection.kept)} answers of {len(selection.questions)} questions, from {agents.path}"
    )
    print(f"train on them: {shell_line(['ratchet', 'train', *config_words(arguments)])}")
