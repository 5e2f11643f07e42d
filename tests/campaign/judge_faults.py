"""Faults of a judge's server while a round is scored: finished scores are kept, and the next run finishes."""

from __future__ import annotations

import contextlib
import io
import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml

from commands.score import main
from inference.http import connection
from ratchet.errors import UserError
from ratchet.files import count_lines, read_jsonl
from ratchet.records import Question
from ratchet.runfolder import RunFolder
from tests.campaign.replies import TEXTS
from tests.campaign.server_faults import fault
from tests.campaign.trial import Attack, Trial
from tests.helpers.reward_cases import judge_reply, make_config, material, trajectory
from tests.helpers.stored import store
from tests.helpers.tiny import save_tiny_tokenizer
from tests.helpers.wire_server import FAST, Fault, Server, running

ANSWERS = ("", "Ada Torrin built it.", "Ada Torrin built it. It was in 1204.")
QUESTIONS = [Question(id=f"q{n}", text=f"Who built harbour {n}?", reference=ANSWERS[-1]) for n in range(3)]
TRAJECTORIES = [
    trajectory(sample, answer, one.id, documents=[ANSWERS[-1], "Nothing."], sampled=(sample,))
    for one in QUESTIONS
    for sample, answer in enumerate(ANSWERS)
]
WEIGHTS = {"correctness": 2.0, "faithfulness": 1.0}
CONCURRENCY = 3
TIMEOUT = 2.0
"""Seconds that a judge may be away before the command gives up."""


class Judging:
    """A judge's answers, and faults in the place of some of them."""

    def __init__(self, server: Server, faults: Mapping[int, Fault | None], odd: random.Random | None = None) -> None:
        """`faults`: by the number of the request; None is the server's end. `odd`: every other reply is nonsense."""
        server.window = 32_000
        self._server, self._faults, self._odd, self._asked = server, dict(faults), odd, 0
        self.answered: Counter[str] = Counter()
        """How often each request was answered."""

    def __call__(self, body: Any) -> Fault:
        with self._server.lock:
            number, self._asked = self._asked, self._asked + 1
            if number not in self._faults:
                self.answered[json.dumps([body["messages"], body["seed"]])] += 1
                return Fault(raw=self._answer(body))
        given = self._faults[number]
        if given is None:
            self._server.stop()
        return given or Fault(drop=True)

    def _answer(self, body: Any) -> str:
        said = judge_reply(material(body["messages"]))
        if self._odd and self._odd.random() < 0.5:
            said = self._odd.choice([*TEXTS, said[: len(said) // 2], json.dumps([said])])
        choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        return json.dumps({"choices": [choice], "usage": {"prompt_tokens": 9999, "completion_tokens": 5}})


@contextmanager
def scoring(folder: Path) -> Iterator[Trial]:
    """Some requests of `python -m rewards` meet a fault, then the command is run again at a server that is well."""
    model = str(save_tiny_tokenizer(folder / "model"))

    def made(here: Path, engine: str, url: str) -> Path:
        here.mkdir()
        limits = {"timeout": TIMEOUT, "concurrency": CONCURRENCY}
        judge = {"path": model, "engine": engine, "served_name": "tiny", "url": url, **limits}
        models = {"agent": {"path": model}, "judge": judge}
        config = make_config(here, QUESTIONS, models=models, rewards={"runs": 2, "weights": WEIGHTS})
        path = here / "config.yaml"
        path.write_text(yaml.safe_dump(config.model_dump(mode="json", exclude_unset=True)))
        store(RunFolder(here / "run").round(1).trajectories, TRAJECTORIES, QUESTIONS, samples=3)
        return path

    with patch.object(connection, "Backoff", lambda: FAST), running() as well:
        well.judge = calm = Judging(well, {})
        assert (said := run(made(folder / "calm", "openai", well.url))) == "", said
        wanted = scores(folder / "calm")
        asked = calm.answered.total()

        def trial(dice: random.Random) -> None:
            here, engine = folder / f"{dice.getrandbits(64)}", dice.choice(["openai", "chat-api"])
            faults: dict[int, Fault | None] = {dice.randrange(asked): fault(dice) for _ in range(dice.randint(1, 8))}
            if dice.random() < 0.2:
                faults[dice.randrange(asked)] = None
            odd = dice if dice.random() < 0.2 else None
            with running() as server:
                server.judge = first = Judging(server, faults, odd)
                path = made(here, engine, server.url)
                said = run(path)
            with running(server.port) as server:
                server.judge = second = Judging(server, {}, odd)
                assert (again := run(path)) == "", again
            found = scores(here)
            assert found.keys() == wanted.keys() if odd else found == wanted, "scores are lost or different"
            lines = count_lines((here / "run" / "round-1" / "scores").glob("*.jsonl"))
            assert lines == len(wanted), "scores were stored twice"
            again_asked = (first.answered + second.answered) - Counter(set(first.answered + second.answered))
            # A command that stops drops the requests in flight, and those answered for scores that it did not finish.
            allowed = 2 * CONCURRENCY if said else 0
            assert again_asked.total() <= allowed, f"{again_asked.total()} answered requests were repeated"

        yield trial


def run(config: Path) -> str:
    """The error of `python -m rewards`; empty where it ends well. A score that is unfinished is an error of it, and
    nothing to select is none: odd replies may leave no score."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as shown:
        try:
            main(["--config", str(config), "--may-be-empty"])
            said = ""
        except UserError as error:
            said = str(error)
    for text in (said, shown.getvalue()):
        assert len(text) < 4000 and "\x1b" not in text and "Traceback" not in text, text[:500]
    return said


def scores(folder: Path) -> dict[tuple[str, str], tuple[object, ...]]:
    """The stored scores of a run, by trajectory and name."""
    rows = (row for path in (folder / "run/round-1/scores").glob("*.jsonl") for _, row in read_jsonl(path))
    return {(row["trajectory"], row["name"]): (row["value"], row["reason"], row["unparsed"]) for row in rows}


ATTACKS = (
    Attack(
        "faults of a judge",
        "scored, or one readable error; the next run ends as a calm one and repeats no finished score",
        scoring,
        1,
        200,
        60.0,
    ),
)
