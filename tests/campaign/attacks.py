"""Every attack of the campaign, in the order of its table."""

from __future__ import annotations

from tests.campaign import (
    bad_input,
    commands,
    damage,
    export_kills,
    full_disk,
    judge_faults,
    kills,
    plugins,
    replica_faults,
    replies,
    server_faults,
    soak,
    training_kills,
    vllm_kills,
    writers,
)
from tests.campaign.trial import Attack

ATTACKS: tuple[Attack, ...] = (
    *kills.ATTACKS,
    *training_kills.ATTACKS,
    *vllm_kills.ATTACKS,
    *export_kills.ATTACKS,
    *full_disk.ATTACKS,
    *writers.ATTACKS,
    *server_faults.ATTACKS,
    *judge_faults.ATTACKS,
    *replica_faults.ATTACKS,
    *replies.ATTACKS,
    *commands.ATTACKS,
    *plugins.ATTACKS,
    *bad_input.ATTACKS,
    *damage.ATTACKS,
    *soak.ATTACKS,
)
