"""The words that docs/STYLE.md tells us to avoid are in no code and no documentation."""

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
STYLE = "docs/STYLE.md"
PROMPTS = ("agents/", "rewards/", "question_generation/")
"""Packages with prompts: their string literals are not searched, since the words of a prompt change numbers."""


@cache
def _avoided() -> tuple[re.Pattern[str], frozenset[str]]:
    """(phrases, names of definitions) in the left column of the table in docs/STYLE.md."""
    rows = (ROOT / STYLE).read_text().partition("| avoid |")[2].partition("## Glossary")[0].splitlines()[2:]
    entries = [entry.strip() for row in rows if row for entry in row.split("|")[1].split(", ")]
    phrases = [r"\s+".join(map(re.escape, entry.split())) for entry in entries if not entry.endswith("()")]
    names = frozenset(entry[:-2] for entry in entries if entry.endswith("()"))
    return re.compile(rf"\b({'|'.join(phrases)})\b", re.IGNORECASE), names


def _defined(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """(name, line) of every class, function and parameter; the leading underscore does not count."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name.lstrip("_"), node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno


def _without_prompts(text: str, tree: ast.AST) -> str:
    """The text with string literals blanked, except docstrings, and all lines where they were."""
    lines = text.splitlines()
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            for i in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[i] = ""
    return "\n".join(lines)


def findings(files: list[str]) -> list[str]:
    """'file:line: word' for every word to avoid."""
    pattern, names = _avoided()
    found = []
    for file in files:
        text = (ROOT / file).read_text()
        if file.endswith(".py"):
            tree = ast.parse(text)
            found += [f"{file}:{line}: {name}()" for name, line in _defined(tree) if name in names]
            text = _without_prompts(text, tree) if file.startswith(PROMPTS) else text
        for match in pattern.finditer(text):
            found.append(f"{file}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]}")
    return sorted(found)


def test_words_to_avoid_are_in_no_code_and_no_documentation() -> None:
    listed = ["git", "ls-files", "*.py", "*.md", "*.sh", "*.j2", "*.yaml", ":!tests", ":!docs/papers", f":!{STYLE}"]
    files = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    found = findings(files)
    assert not found, "see the table of words in docs/STYLE.md:\n" + "\n".join(found)


def test_nothing_installs_the_stranger_of_our_name_and_every_extra_is_explained() -> None:
    files = subprocess.run(
        ["git", "ls-files", "*.py", "*.md", "*.ipynb", "*.yaml"], cwd=ROOT, capture_output=True, text=True
    )
    stranger = re.compile(r"pip install [^\n`]*?['\" ]ratchet(?!-agents)\b")
    assert [file for file in files.stdout.split() if stranger.search((ROOT / file).read_text())] == []
    table = (ROOT / "docs/getting-started.md").read_text().partition("| extra |")[2].partition("\n\n")[0]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(re.findall(r"`(\w+)`(?=[^|]*\|[^|]*\|\n?)", table)) >= set(extras)
