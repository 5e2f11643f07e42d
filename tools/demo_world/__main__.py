"""Write the demo's data: the Thistlewake Isles, a small world that no model knows.

python -m tools.demo_world --out demo

The committed files are exactly what this writes (asserted in tests/tools): no clock, no input but the seed.
"""

from __future__ import annotations

import argparse
import json
import random
from dataclasses import asdict
from pathlib import Path

from commands.arguments import run_command
from ratchet.files import write_atomic
from tools.demo_world.entities import SPLITS, build_entities, write_document
from tools.demo_world.questions import MORE_DEV, make_claims, make_questions

SEED = 1


def generate(seed: int = SEED) -> dict[str, str]:
    """File name to content, for the corpus, the questions of each split and the claims."""
    rng = random.Random(seed)
    entities = build_entities(rng)
    documents = [write_document(entity, rng) for entity in entities.values()]
    rng.shuffle(documents)
    questions = {split: make_questions(entities, split, rng) for split in SPLITS}
    # From a generator of its own: train, test and claims stay those of the first version, and results comparable.
    questions["dev"] = make_questions(entities, "dev", random.Random(f"{seed}/dev"), MORE_DEV)
    claims = [claim for split in SPLITS for claim in make_claims(entities, split, rng)]
    files = {"corpus.jsonl": [asdict(document) for document in documents]}
    files |= {f"{s}.jsonl": [q.model_dump(mode="json", exclude_defaults=True) for q in questions[s]] for s in SPLITS}
    files["claims.jsonl"] = [claim.model_dump(mode="json") for claim in claims]
    return {name: "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows) for name, rows in files.items()}


def main() -> None:
    """Run the command: write the five files of the demo's data."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.demo_world", description="Write the demo's corpus and questions."
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the five JSONL files")
    parser.add_argument("--seed", type=int, default=SEED, help="another seed gives another world (default %(default)s)")
    arguments = parser.parse_args()
    for name, text in generate(arguments.seed).items():
        write_atomic(arguments.out / name, text)
        print(f"{arguments.out / name}: {text.count(chr(10))} lines")


if __name__ == "__main__":
    run_command(main)
