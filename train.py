"""`python train.py`: commands/train.py."""

from commands.arguments import run_command
from commands.train import main

if __name__ == "__main__":
    run_command(main)
