"""`python -m training`: commands/rows.py."""

from commands.arguments import run_command
from commands.rows import main

if __name__ == "__main__":
    run_command(main)
