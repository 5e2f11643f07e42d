"""Answer match: word F1, but nothing for another number, date or name, or the opposite. No judge (our rule).

F1 counts words: "2 months" for "24 months", and "not allowed" for "allowed", have 0.5 or more. Here an answer has 0
against a right answer where

- numbers differ. They are compared in one spelling (`ratchet.core.text.spell_numbers`) and in the digits of any script:
  1,000 is 1000, but 1.5 is not 15, nor 10⁶ 106. Zeros at the end count, since version 3.10 is not 3.1: 1.50 is not 1.5
  either. Of a right answer of more than `SHORT` words, one that has fewer numbers, but one, may be a part;
- one of the two is negated and the other is not, by the words of `NEGATIONS`;
- the right answer has at most `SHORT` words, and each of the two has a word that the other lacks ("10 May 1912" and
  "10 March 1912", "two months" and "twenty-four months"). This is so in any language.

Else it has its F1. The best over the right answers counts, as in `f1`. A right answer in other words ("two" for "2") is
lost: what is learnt is safe, not complete. Of longer answers, another word (a month, a name) is not noticed.
"""

from __future__ import annotations

import re

from ratchet.core.records import Question, Trajectory
from ratchet.core.text import Normalise, fold_typography, spell_numbers
from ratchet.core.words import split_words
from ratchet.rewards import rules
from ratchet.rewards.inputs import Inputs
from ratchet.rewards.reward import Rule

SHORT = 5
"""Words of a right answer, after normalising, up to which every word counts."""
NUMBER = re.compile(r"(?:(?<!\w)-)?\d+(?:\.\d+)?(?:[\^_][-+]?\d+)?")
LEADING = re.compile(r"(?<![\d.])0+(?=\d)")
NEGATIONS = frozenset(
    split_words(
        """
        no not never none nor neither nobody nothing nowhere without cannot
        nicht kein keine keinen keinem keiner keines nie niemals niemand nichts ohne nein
        pas non jamais aucun aucune sans rien nunca jamás ningún ninguno ninguna sin nada tampoco
        não nenhum nenhuma sem nem nessun nessuno nessuna senza niet geen nooit zonder nee
        inte ej aldrig ingen inget inga utan nej ikke aldri uten uden ei eivät ilman nem nincs soha nu niciodată fără
        nigdy żaden bez nikdy žádný не нет ни никогда без нельзя ні немає δεν μη μην όχι χωρίς
        değil yok hayır asla không chưa chẳng tidak bukan tanpa jangan
        لا لم لن ليس ليست غير بدون نه نیست לא אין בלי नहीं न मत बिना 안 아니 아니다 없다 없음 않음 않다 못
        """
    )
)
"""The languages are those that write blanks between words: in others an added negation makes another word."""


def score(question: Question, trajectory: Trajectory, inputs: Inputs) -> float:
    """The F1 with the right answer that it is best with, of those that it does not differ from in substance."""
    answer, normalise = trajectory.answer, inputs.normalise
    agreeing = [right for right in rules.references(question) if agrees(answer, right, normalise)]
    return rules.token_f1(answer, agreeing, normalise) if agreeing else 0.0


def agrees(answer: str, right: str, normalise: Normalise) -> bool:
    """Tell whether the answer says no other number, not the opposite, and, beside a short one, nothing else."""
    said, expected = set(normalise(answer).split()), normalise(right).split()
    is_short = len(expected) <= SHORT
    if is_short and not (said <= set(expected) or said >= set(expected)):
        return False
    found, wanted = numbers(answer), numbers(right)
    return _is_negated(answer) == _is_negated(right) and (
        found == wanted or (not is_short and bool(found) and found < wanted)
    )


def _is_negated(text: str) -> bool:
    return not NEGATIONS.isdisjoint(split_words(fold_typography(text).lower().replace("n't", " not")))


def numbers(text: str) -> set[str]:
    """The numbers in a text, in digits, each in one spelling: without separators of thousands and leading zeros."""
    digits = re.sub(r"\d", lambda digit: str(int(digit[0])), spell_numbers(fold_typography(text)))
    return {LEADING.sub("", number.replace("+", "")) for number in NUMBER.findall(digits)}


REWARD = Rule(
    title="Answer match",
    version=f"{rules.VERSION}-2",
    score=score,
    needs=("answers", "reference"),
    normalises=True,
)
