"""The prompts of question generation and the definitions of its categories, pinned."""

from pathlib import Path

from ratchet.core.records import Document
from ratchet.question_generation.prompts import DEFAULT_CATEGORIES, check_prompt, load_categories, write_prompt
from tests.helpers.pinned import check_pinned


def test_the_prompts_and_every_definition_are_pinned() -> None:
    categories = load_categories(DEFAULT_CATEGORIES)
    documents = [Document("a", "Velm lies by the sea.", "Velm"), Document("b", "It has a harbour.", "")]
    every = {
        f"{name}: {category}": found
        for name, drawn in categories.categorisations.items()
        for category, found in drawn.items()
    }
    prompts = [
        write_prompt(documents, {"interaction_type": "single-turn"}, every, "en"),
        write_prompt(documents, {"interaction_type": "two-turn"}, {}, ""),
        check_prompt(documents, "Where does Velm lie?", "By the sea."),
    ]
    check_pinned(Path(__file__).parent / "snapshots/generation.txt", "\n\n======\n".join(prompts) + "\n")
