"""Plug-ins of every kind that raise, return what is not asked for, or hold escape sequences."""

import contextlib
import io
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml

from ratchet.commands.main import run_command
from ratchet.core.files import count_lines, segment_files
from ratchet.core.runfolder import RunFolder
from ratchet.rewards.store import current_settings
from ratchet.sampling.store import TrajectoryStore
from tests.campaign.trial import Attack, Trial
from tests.helpers.commands import command_of
from tests.helpers.experiment import make_experiment

build = command_of("index")
sample = command_of("sample")
score = command_of("score")

Spots = Mapping[str, Sequence[str]]
"""By spot of a plug-in: what may stand there in place of what should."""

ESCAPE = "\\x1b[2J\\x1b]0;gone\\x07\\u202e"
RAISES = (
    f"raise ValueError('{ESCAPE}')",
    "raise KeyError('x' * 100_000)",
    "raise SystemExit(0)",
    "raise SystemExit('no')",
    "raise OSError(28, 'No space left on device')",
    "raise TimeoutError",
    "raise MemoryError",
    "raise ExceptionGroup('many\\nlines', [ValueError('a')])",
    "import nowhere_at_all",
    "1 / 0",
    "(f := lambda: f())()",
    "raise type('Odd', (Exception,), {'__str__': lambda self: 1 / 0})",
)
VALUES = (
    "None", "7", "-1", "'text'", "float('nan')", "object()", "[]", "{}", "['a', 7]", "('a', 'b', 'c')", "lambda: 1",
    "10**400", "b'x'", f"'{ESCAPE}'", "'\\ud800'", "type('Odd', (), {'__repr__': lambda self: 1 / 0})()",
)  # fmt: skip
ANSWERS = (*VALUES, "Answer(None)", "Answer(7)", f"Answer('{ESCAPE}')", "Answer('\\ud800')", "Answer('a', passages=7)",
           "Answer('a', passages=('b',))", "Answer('a', status='odd')", "Answer('a', candidates={1: 2})",
           "Answer('a', candidates=('b',))", f"Answer('a', status='unparsed', error='{ESCAPE}')")  # fmt: skip
SCORES = (*VALUES, f"(None, '{ESCAPE}')", "(0.5, 7)", "(0.5, '\\ud800')", "(7, 'why')", "(None, None)")
PASSAGES = (*VALUES, "[Passage]", f"[Passage(id='a', document_id='b', text='{ESCAPE}')]", "[Passage(id=1)]")

SYSTEM = """\
from ratchet.agents.core.system import SystemSpec
from ratchet.agents.core.tools import Answer
from ratchet.core.config import Section
{top}
class Settings(Section):
    tries: int = {tries}
async def solve(question, tools, settings):
    {before}
    passages = await tools.search("answerer", question.text, 2, source="mine")
    said = await tools.ask(tools.dialogue("answerer", "Answer the question."), question.text)
    {after}
    return {value}
SYSTEM = SystemSpec(Settings, solve, roles={roles})
"""
REWARD = """\
{top}
TITLE = {title}
NEEDS = {needs}
{kind} score(question, trajectory):
    {before}
    return {value}
"""
SOURCE = """\
from ratchet.core.config import Section
from ratchet.core.records import Passage
from ratchet.retrieval.sources.source import SearchSource
{top}
class Settings(Section):
    shelf: str = "A"
class Source(SearchSource):
    about = "Searches a shelf."
    digest = {digest}
    def __init__(self, name, settings):
        {before}
        self.name = name
    async def search(self, query, k, offset=0):
        {within}
        return {value}
"""
BENCHMARK = """\
{top}
from ratchet.questions.benchmark import Benchmark
def rows(found, split, folder):
    {before}
    return {value}
BENCHMARK = Benchmark({title}, "ours", "CC0", "here", "none", {splits}, {split}, {formats}, rows=rows)
"""
PLUGINS: dict[str, tuple[str, dict[str, str], Spots]] = {
    "system": (
        SYSTEM,
        {"top": "", "roles": "('answerer',)", "tries": "3", "before": "pass", "after": "pass",
         "value": "Answer('Ada Torrin', tuple(passages))"},
        {"top": RAISES, "roles": VALUES, "tries": VALUES, "before": RAISES, "after": RAISES, "value": ANSWERS},
    ),
    "reward": (
        REWARD,
        {"top": "", "title": "'Brevity'", "needs": "()", "before": "pass", "value": "0.5", "kind": "def"},
        {"top": RAISES, "title": VALUES, "needs": VALUES, "before": RAISES, "value": SCORES},
    ),
    "source": (
        SOURCE,
        {"top": "", "digest": "'d'", "before": "pass", "within": "pass",
         "value": "[Passage(id='p', document_id='d', text=query)]"},
        {"top": RAISES, "digest": VALUES, "before": RAISES, "within": RAISES, "value": PASSAGES},
    ),
    "benchmark": (
        BENCHMARK,
        {"top": "", "title": "'Lakes'", "splits": "{'train': ()}", "split": "'train'", "formats": "()",
         "before": "pass", "value": "found"},
        {"top": RAISES, "title": VALUES, "splits": VALUES, "split": VALUES, "formats": VALUES, "before": RAISES,
         "value": (*VALUES, "[('line 1', 7)]", "[('line 1', {})]", "[(7, {'id': 'a', 'text': 'b'})]")},
    ),
}  # fmt: skip
"""By kind: the code of a plug-in, what stands at its spots, and what may stand there instead."""


class Laboratory:
    """An experiment all of whose parts are plug-ins, and commands over it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = make_experiment(folder / "base", questions=2)
        self._base = yaml.safe_load(path.read_text())
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            build(["--config", str(path)])

    def make(self, here: Path) -> Path:
        """A config in the folder `here`, whose plug-ins are well."""
        here.mkdir()
        for kind in PLUGINS:
            self.write(here, kind)
        config = self._base | {
            "run": str(here / "run"),
            "sources": {"mine": {"service": "plugin", "name": str(here / "source.py")}},
            "system": {"name": str(here / "system.py"), "roles": {"default": {"max_tokens": 64}}},
            "sampling": {"samples": 2, "concurrency": 2},
            "rewards": {"weights": {str(here / "reward.py"): 1.0}},
        }
        train = config["questions"]["train"] | {"benchmark": str(here / "benchmark.py")}
        config["questions"] = config["questions"] | {"train": train}
        path = here / "config.yaml"
        path.write_text(yaml.safe_dump(config))
        return path

    def write(self, here: Path, plugin: str, **spots: str) -> None:
        """Write a plug-in, with these spots in place of what should stand there."""
        code, good, _ = PLUGINS[plugin]
        (here / f"{plugin}.py").write_text(code.format(**good | spots))

    def run(self, config: Path) -> str:
        """Sample and score, as commands do; the first error."""
        for main, more in ((sample, []), (score, ["--may-be-empty"])):
            said = run([*more, "--config", str(config)], main)
            if said:
                return said
        one = RunFolder(config.parent / "run").round(1)
        found = list(TrajectoryStore(one.trajectories).read())
        assert len({trajectory.key for trajectory in found}) == 4, "trajectories are lost"
        assert len(current_settings(one.scores)) == 1 and count_lines(segment_files(one.scores)) >= 4
        return ""


def run(words: Sequence[str], main: Callable[..., None]) -> str:
    """What a command of ours says as it is refused; empty where it ends with status 0."""
    status: object = 0
    with contextlib.redirect_stderr(io.StringIO()) as err, contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            run_command(lambda: main(words))
        except SystemExit as end:
            status = end.code
    if status in (130, 143):  # the campaign itself is to stop
        raise KeyboardInterrupt
    shown = out.getvalue() + err.getvalue()
    assert "\x1b" not in shown and "\u202e" not in shown, "escape sequences reach the terminal"
    assert "Traceback" not in shown and len(shown) < 10_000, shown[:300]
    said = err.getvalue().partition("error: ")[2]
    assert status == (2 if said else 0), f"status {status}: {shown[-300:]}"
    return said


@contextmanager
def odd_plugins(folder: Path) -> Iterator[Trial]:
    """One spot of one plug-in is wrong; then it is repaired, and the same commands end well."""
    laboratory = Laboratory(folder)

    def trial(dice: random.Random) -> None:
        here = folder / f"{dice.getrandbits(64)}"
        config = laboratory.make(here)
        kind = dice.choice(sorted(PLUGINS))
        spots = PLUGINS[kind][2]
        spot = dice.choice(sorted(spots))
        wrong = {spot: dice.choice(spots[spot])}
        if kind == "reward":
            wrong["kind"] = dice.choice(["def", "async def"])
        laboratory.write(here, kind, **wrong)
        try:
            said = laboratory.run(config)
            # A benchmark without rows is told of by the name of its question file.
            names = (f"{kind}.py", "sources.mine", "mine:", *(["train.jsonl"] if kind == "benchmark" else []))
            assert not said or any(name in said for name in names), f"does not name the plug-in: {said}"
            assert len(said) < 1500, said[:300]
        except Exception as error:
            raise AssertionError(f"{kind} {wrong}: {type(error).__name__}: {error}") from error
        laboratory.write(here, kind)
        assert (again := laboratory.run(config)) == "", again

    yield trial


ATTACKS = (Attack("plug-ins that raise, return nonsense or write escapes", odd_plugins, 4, 1000, 60.0),)
