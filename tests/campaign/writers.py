"""Writers that are suspended, and what others may do meanwhile."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ratchet.files import Segment, read_segment
from ratchet.records import Note
from tests.campaign.trial import Attack, Trial, refusal

WRITER = """
import sys
from pathlib import Path
from ratchet.files import Segment
from ratchet.records import Note
with Segment(Path(sys.argv[1])) as segment:
    while True:
        segment.append(Note(role="r", text="mine", at=0.0))
        print("written", flush=True)
"""


@contextmanager
def suspended(folder: Path) -> Iterator[Trial]:
    """A writer is stopped for a moment, and killed in the end."""

    def trial(dice: random.Random) -> None:
        path = folder / f"{dice.getrandbits(64)}.jsonl"
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        try:
            written = 0
            for _ in range(dice.randint(1, 20)):
                written += bool(writer.stdout.readline())
            time.sleep(dice.uniform(0, 0.01))
            writer.send_signal(signal.SIGSTOP)
            said = refusal(lambda: Segment(path).close())
            assert f"process {writer.pid} " in said, said or "a second writer was let in beside a suspended one"
            writer.send_signal(signal.SIGCONT if dice.random() < 0.5 else signal.SIGKILL)
            time.sleep(dice.uniform(0, 0.01))
        finally:
            writer.kill()
            written += len(writer.communicate()[0].splitlines())
        with Segment(path) as segment:
            segment.append(Note(role="r", text="next", at=0.0))
        found = [note.text for note in read_segment(path, Note)]
        # One line may be on disk that the writer was killed before saying so.
        assert found[:-1] in (["mine"] * written, ["mine"] * (written + 1)) and found[-1] == "next"

    yield trial


ATTACKS = (
    Attack(
        "suspended and killed writers",
        "a second writer is refused meanwhile and let in at once afterwards; every acknowledged line is there",
        suspended,
        1,
        300,
    ),
)
