"""Faults of a model server, in its answers to completions, to the loading of adapters and to their check."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from inference.engine import EngineError
from ratchet.errors import UserError
from tests.campaign.trial import Attack, Trial
from tests.helpers.odd_answers import ODD
from tests.helpers.tiny import save_tiny_tokenizer
from tests.helpers.wire_server import Fault, World, adapter, running

STATUSES = (400, 401, 403, 404, 408, 409, 413, 422, 425, 429, 500, 501, 502, 503, 504)
WAITS = ("0", "0.01", "soon", "-1", "inf", "Wed, 21 Oct 2015 07:28:00 GMT")


def fault(dice: random.Random) -> Fault:
    """Any fault that does not take the client's whole timeout."""
    match dice.randrange(5):
        case 0:
            headers = {"Retry-After": dice.choice(WAITS)} if dice.random() < 0.5 else {}
            return Fault(dice.choice(STATUSES), dice.choice(["busy", "\x1b[2J", "x" * 10_000]), headers)
        case 1:
            return Fault(drop=True)
        case 2:
            return Fault(delay=dice.uniform(0, 0.05), status=503)
        case 3:
            return Fault(raw=dice.choice(["", "{}", "[]", '{"choices": [{}]}', '{"choices": "\u2028"}']))
        case _:
            return Fault(wire=dice.choice(sorted(ODD.values())))


@contextmanager
def faults(folder: Path) -> Iterator[Trial]:
    """One to four faults in a row, then a server that is well again."""
    tokenizer, lora = str(save_tiny_tokenizer(folder / "model")), str(adapter(folder / "adapter"))

    async def attack(dice: random.Random) -> None:
        with running() as server:
            server.pause = 0.0
            engine = dice.choice(["vllm", "openai"])
            world = World(server, tokenizer, engine=engine)
            named = lora if engine == "vllm" and dice.random() < 0.5 else None
            try:
                await world.ask()
                server.faults = [fault(dice) for _ in range(dice.randint(1, 4))]
                said = ""
                try:
                    await world.ask(adapter=named)
                except (EngineError, UserError) as error:
                    said = str(error)
                assert len(said) < 2000 and "\x1b" not in said, said[:300]
                server.faults = []
                assert (await world.ask(adapter=named)).finish_reason == "stop"
            finally:
                await world.engine.close()

    yield lambda dice: asyncio.run(attack(dice))


ATTACKS = (
    Attack(
        "faults of a model server",
        "an answer or one readable error; the next request is answered",
        faults,
        10,
        1500,
    ),
)
