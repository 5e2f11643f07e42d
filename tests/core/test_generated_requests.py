"""Requests that are generated from the OpenAPI documents of the servers, right and wrong ones, by schemathesis: none is
an error of the server, and every answer is one that the document describes."""

from __future__ import annotations

import asyncio
import contextlib
import re
from pathlib import Path

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from ratchet.retrieval.backends.remote import Limits
from ratchet.retrieval.serving.app import create_app as search_app
from tests.helpers.gateway import NAME, numbered, record
from tests.helpers.listening import listening
from tests.helpers.served import Plain
from tests.helpers.served_systems import serving

pytestmark = [pytest.mark.server, pytest.mark.slow]
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
KEY = "open-sesame"
REQUESTS = 5
"""For each operation of a server, right ones and as many wrong ones."""


def send_requests(url: str, left_out: str = "-", **headers: str) -> None:
    """Send the requests to each operation, the same in every run. `left_out`: a pattern of paths that get none."""
    found = schemathesis.openapi.from_url(f"{url}/openapi.json", headers=headers)
    for operation in (result.ok() for result in found.get_all_operations()):
        if re.search(left_out, operation.path):
            continue
        for mode in GenerationMode.POSITIVE, GenerationMode.NEGATIVE:

            @settings(
                max_examples=REQUESTS,
                derandomize=True,
                database=None,
                deadline=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode))
            def send(case: Case) -> None:
                case.call_and_validate(checks=CHECKS, headers=headers, timeout=60)

            with contextlib.suppress(Unsatisfiable):  # a request without parameters cannot be a wrong one
                send()


def test_the_search_server() -> None:
    with listening(search_app({"plain": Plain()}, Limits())) as url:
        send_requests(url)


def test_the_systems_of_a_config(tmp_path: Path) -> None:
    with serving(tmp_path, key=KEY) as served:
        send_requests(served.url, authorization=f"Bearer {KEY}")


async def test_the_gateway() -> None:
    async def program(client: httpx.AsyncClient) -> str:
        url = str(client.base_url).partition("/t/")[0]
        await asyncio.to_thread(send_requests, url, "^/t/|/finish$", **{"x-ratchet-trajectory": NAME})
        return "Ada"

    assert (await record(program, numbered)).status == "finished"
