"""`python train.py`: commands/train.py."""

from ratchet.commands.arguments import run_command
from ratchet.commands.train import main

if __name__ == "__main__":
    run_command(main)
