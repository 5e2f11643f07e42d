"""The documentation's pages, and the commands and code blocks on them."""

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = (README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))

RUN = "<!-- test: run -->\n"
BLOCK = re.compile(rf"(?P<run>{RUN})?^```(?P<language>\w+)\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
PROGRAMS = ("ratchet", "python", "accelerate", "make")


def blocks(page: Path, language: str, run: bool = False) -> list[str]:
    """The code blocks in a language; with `run`, those that the page marks as ones that the tests run."""
    found = (match for match in BLOCK.finditer(page.read_text()) if match["language"] == language)
    return [match["text"] for match in found if match["run"] or not run]


def commands_in(text: str) -> list[list[str]]:
    """The commands of a bash block, split into words; comments are left out."""
    lines = text.replace("\\\n", " ").splitlines()
    return [words for line in lines for part in line.split("&&") if (words := shlex.split(part, comments=True))]


def commands(page: Path) -> list[list[str]]:
    """Every command that the page shows, in a bash block or in a line of text."""
    text = BLOCK.sub("", page.read_text())
    spans = [span for span in SPAN.findall(text) if span.partition(" ")[0] in PROGRAMS]
    return [words for shown in (*blocks(page, "bash"), *spans) for words in commands_in(shown)]
