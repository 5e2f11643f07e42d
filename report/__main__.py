"""`python -m report`: commands/report.py."""

from commands.arguments import run_command
from commands.report import main

if __name__ == "__main__":
    run_command(main)
