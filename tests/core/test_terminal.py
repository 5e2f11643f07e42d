"""What documents, models and questions say reaches a terminal as text, never as a command of the terminal."""

import io
import subprocess
import sys

import pytest
from rich.table import Table
from rich.text import Text

from ratchet.commands.rows import render_row
from ratchet.core.records import Conversation, Span
from ratchet.core.tables import PlainConsole, wide_console
from ratchet.core.text import plain_line, plain_text
from ratchet.training.rows import TokenRow
from tests.helpers.experiment import preloaded

ATTACK = (
    "\x1b]52;c;cm0gLXJmIC8=\x07"  # writes the clipboard
    "\x1b]0;title\x1b\\"
    "\x1b[2J\x1b[31m\x9b2J\x9d52;c;eA==\x9c"  # clears the screen, colours it; and the same in one byte each
    "\x07\x08\x7f\x0b\x0c\x85\x1bc"
    "\u202egnitirw\u202c\u2066\u200e\ufeff\r"
)
HARMFUL = {character for character in ATTACK if not character.isprintable()} - {"\n"}


def check_harmless(shown: str) -> None:
    left = HARMFUL & set(shown)
    assert not left, f"{sorted(map(hex, map(ord, left)))} in {shown!r}"


def test_a_command_of_the_terminal_is_taken_out_whole_and_text_stays() -> None:
    check_harmless(plain_text(ATTACK))
    assert plain_text(ATTACK).split() == ["gnitirw"], "whole commands go, not their first character alone"
    assert plain_text(f"a{ATTACK}b").replace("\n", "") == "agnitirwb"
    assert plain_line(f"one\n two\t{ATTACK} three") == "one two gnitirw three"
    assert plain_text("Zoë\n\tשלום 👩\u200d🚀 a_b [1]") == "Zoë\n\tשלום 👩\u200d🚀 a_b [1]"
    assert plain_text("a\r\nb\u2028c\xa0d") == "a\nb\nc d"
    assert plain_text("\x1b]52;c;never ended\nnext").endswith("next")


def test_a_console_shows_text_as_text_in_tables_too(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("name")
    table.add_row(f"cell{ATTACK}")
    console = wide_console(200)
    console.print(table)
    console.print(f"line{ATTACK}", markup=False)
    out = capsys.readouterr().out
    check_harmless(out)
    assert "cell" in out and "line" in out


def test_colours_of_our_own_stay() -> None:
    out = io.StringIO()
    PlainConsole(file=out, force_terminal=True, color_system="standard", width=80).print(Text(f"Ada{ATTACK}", "red"))
    assert out.getvalue().startswith("\x1b[31mAda")
    check_harmless(out.getvalue().replace("\x1b[31m", "").replace("\x1b[0m", ""))


FAILING = """
import logging, sys
from ratchet.commands.main import run_command
from ratchet.core.errors import UserError

def main():
    logging.getLogger("server").warning("it said %s", sys.argv[1])
    raise UserError(f"the server says {sys.argv[1]}")

run_command(main)
"""


def test_errors_and_warnings_are_shown_as_text() -> None:
    shown = run("-c", FAILING, ATTACK)
    assert "error: the server says" in shown and "WARNING server: it said" in shown
    check_harmless(shown)


def test_a_training_row_is_shown_as_text() -> None:
    ids = tuple(ATTACK.encode("utf-8", "surrogatepass"))
    conversation = Conversation(
        role="one", model="m", trainable=True, ids=ids, spans=(Span(start=0, end=len(ids), author="user"),)
    )
    row = TokenRow(trajectory="t", conversation=0, role="one", ids=ids, loss_mask=(0,) * len(ids))
    check_harmless(render_row(row, conversation, lambda some: bytes(some).decode(), colour=False))


def run(*arguments: str) -> str:
    """All that a Python process prints, byte for byte."""
    words = [sys.executable, *arguments]
    done = subprocess.run(words, env=preloaded(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return done.stdout.decode()
