"""`python -m questions`: commands/questions.py."""

from commands.arguments import run_command
from commands.questions import main

if __name__ == "__main__":
    run_command(main)
