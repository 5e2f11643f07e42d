"""A reward with a value for each role: how it is stored, and what each role then keeps."""

from pathlib import Path

import pytest

from ratchet.core.config import SelectConfig
from ratchet.core.errors import UserError
from ratchet.core.records import Conversation, Question, Score, Span, Trajectory
from ratchet.rewards.selection import select, select_at_random
from ratchet.rewards.store import stored_scores
from ratchet.rewards.summary import selection_lines
from ratchet.sampling.store import Trajectories
from tests.helpers.reward_cases import make_config, rule_score, score_with
from tests.helpers.reward_cases import trajectory as plain

pytestmark = pytest.mark.usefixtures("mine")

QUESTION = Question(id="q1", text="Who built it?", answers=("Ada",))
OTHER = Question(id="q2", text="Who else?", answers=("Ada",))
WEIGHTS = {"f1": 3.0, "./found.py": 1.0}
FOUND = """\
def score(question, trajectory):
    has_searched = any("searcher" == one.role and len(one.ids) > 4 for one in trajectory.conversations)
    return {"searcher": float(has_searched), "answerer": 0.0, "judge": 1.0}
"""


def spoken(role: str, *sampled: int, trainable: bool = True) -> Conversation:
    spans = (Span(start=0, end=3, author="user"), Span(start=3, end=3 + len(sampled), author="assistant", sampled=True))
    return Conversation(role=role, model="agent", trainable=trainable, ids=(7, 8, 9, *sampled), spans=spans)


def attempt(sample: int, answer: str, searches: int = 1, question: str = "q1") -> Trajectory:
    parts = (spoken("searcher", *range(searches)), spoken("answerer", 50 + sample), spoken("judge", 4, trainable=False))
    return plain(sample, answer, question=question).model_copy(update={"conversations": parts})


def scores_of(*values: tuple[Trajectory, float, float | dict[str, float]]) -> dict[tuple[str, str], Score]:
    scores = {}
    for made, f1, found in values:
        scores[made.key, "f1"] = Score(trajectory=made.key, name="f1", value=f1)
        roles = found if isinstance(found, dict) else {}
        value = sum(roles.values()) / len(roles) if isinstance(found, dict) else found
        scores[made.key, "./found.py"] = Score(trajectory=made.key, name="./found.py", value=value, roles=roles)
    return scores


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "found.py").write_text(FOUND)
    return tmp_path


def test_the_values_of_trained_roles_are_stored_beside_the_mean_of_all(mine: Path) -> None:
    made = [attempt(0, "Velm", searches=3), attempt(1, " ")]
    found = score_with(make_config(mine, [QUESTION]), [QUESTION], made, ["./found.py"], mine / "scores")
    score = found[made[0].key, "./found.py"]
    assert (score.value, score.roles) == (pytest.approx(2 / 3), {"searcher": 1.0, "answerer": 0.0})
    without = found[made[1].key, "./found.py"]
    assert (without.value, without.roles) == (0.0, {}), "an answer without words is worth nothing to any role"
    assert stored_scores(mine / "scores", {one.key for one in made}) == found
    [file] = (mine / "scores").glob("found-*.jsonl")
    assert [line.count('"roles"') for line in file.read_text().splitlines()] == [1, 0]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ('{"seacher": 1.0, "answerer": 0.0}', r"every role that is trained a value \(searcher.*did you mean 'seacher'"),
        ('{"searcher": 2.0, "answerer": 0.0}', r"a value is a number from 0 to 1.*dictionary of roles"),
        ('{"searcher": None, "answerer": 0.0}', r"dictionary of roles with a number for each"),
        ("{}", r"dictionary of roles"),
    ],
)
def test_a_role_without_a_value_is_an_error_that_names_it(mine: Path, returned: str, message: str) -> None:
    (mine / "found.py").write_text(f"def score(question, trajectory):\n    return {returned}\n")
    with pytest.raises(UserError, match=message):
        rule_score("./found.py", QUESTION, attempt(0, "Velm"))


def test_a_searcher_that_found_everything_is_kept_although_the_answer_was_wrong() -> None:
    wrong, right = attempt(0, "Velm", searches=3), attempt(1, "Ada Torrin", searches=0)
    empty = attempt(2, " ")
    scores = scores_of(
        (wrong, 0.0, {"searcher": 1.0, "answerer": 0.0}),
        (right, 0.25, {"searcher": 0.0, "answerer": 0.5}),
        (empty, 0, 0),
    )
    # The searcher's rewards are (3 x 0 + 1) / 4 and (3 x 0.25 + 0) / 4, the answerer's 0 and (0.75 + 0.5) / 4.
    selection = select([QUESTION], Trajectories.of([wrong, right, empty]), scores, WEIGHTS, SelectConfig())
    answerer, searcher = selection.roles
    assert (searcher.learners, searcher.kept) == (("searcher",), (wrong.key,))
    assert searcher.rewards == {wrong.key: 0.25, right.key: 0.1875, empty.key: 0.0}
    assert (answerer.learners, answerer.kept) == (("answerer",), (right.key,))
    assert answerer.rewards == {wrong.key: 0.0, right.key: 0.3125, empty.key: 0.0}
    [whole] = selection.questions
    assert whole.kept == selection.kept == (wrong.key, right.key), "the question's choice has what any role keeps"
    assert whole.rewards == {wrong.key: 0.125, right.key: 0.25, empty.key: 0.0}
    assert whole.reason.startswith("answerer: kept 1 of 3: best at 0.312") and "; searcher: kept 1 of 3" in whole.reason
    assert "roles learn by their own values: answerer from 1 of 1 questions, searcher from 1 of 1 questions" in (
        selection_lines(selection)
    )


def test_each_role_has_rules_of_its_own_and_questions_without_values_by_role_teach_all() -> None:
    first, second = attempt(0, "Velm"), attempt(1, "Ada", question="q2")
    scores = scores_of((first, 0.0, {"searcher": 1.0, "answerer": 0.0}), (second, 1.0, 1.0))
    selection = select([QUESTION, OTHER], Trajectories.of([first, second]), scores, WEIGHTS, SelectConfig())
    assert [(one.question_id, one.learners, one.cause) for one in selection.roles] == [
        ("q1", ("answerer",), "reward_too_low"),
        ("q1", ("searcher",), "kept"),
        ("q2", (), "kept"),
    ]
    assert selection.trained == selection.roles and [one.cause for one in selection.questions] == ["kept", "kept"]
    scores = scores_of((first, 0.0, 0.5), (second, 1.0, 1.0))
    selection = select([QUESTION, OTHER], Trajectories.of([first, second]), scores, WEIGHTS, SelectConfig())
    assert selection.trained == selection.questions and '"roles"' not in selection.model_dump_json()


def test_trajectories_are_the_same_to_a_role_that_did_the_same() -> None:
    made = [attempt(0, "Ada", searches=3), attempt(1, "Ada", searches=3)]
    scores = scores_of(*((one, 1.0, {"searcher": 1.0, "answerer": 1.0}) for one in made))
    answerer, searcher = select([QUESTION], Trajectories.of(made), scores, WEIGHTS, SelectConfig()).roles
    assert (searcher.kept, answerer.kept) == ((made[0].key,), (made[0].key, made[1].key))


def test_the_random_control_draws_as_many_for_each_role() -> None:
    made = [attempt(i, "Ada") for i in range(6)]
    values = [{"searcher": float(i < 2), "answerer": float(i == 0)} for i in range(6)]
    scores = scores_of(*((one, 0.0, value) for one, value in zip(made, values, strict=True)))
    rule = SelectConfig(similarity=None)
    selection = select([QUESTION], Trajectories.of(made), scores, WEIGHTS, rule)
    drawn = select_at_random(selection, made, seed=1)
    assert [(one.learners, len(one.kept)) for one in drawn.roles] == [(("answerer",), 1), (("searcher",), 2)]
    assert set(drawn.kept) == {key for one in drawn.roles for key in one.kept} == set(drawn.questions[0].kept)


def test_a_role_that_did_not_act_has_no_candidate_in_that_trajectory() -> None:
    alone, both = attempt(0, "Ada"), attempt(1, "Velm")
    scores = scores_of((alone, 1.0, {"answerer": 1.0}), (both, 0.0, {"searcher": 1.0, "answerer": 0.0}))
    answerer, searcher = select([QUESTION], Trajectories.of([alone, both]), scores, WEIGHTS, SelectConfig()).roles
    assert answerer.kept == (alone.key,) and searcher.kept == (both.key,) and alone.key not in searcher.rewards
