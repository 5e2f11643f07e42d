"""An export, and a report, as pieces of work that can be killed."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from typing import Any

import peft  # noqa: F401 - an export imports it late: here it is done before the work is forked

from tests.helpers.commands import command_of

main = command_of("export")
report = command_of("report")


def run_export(request: Mapping[str, Any]) -> None:
    """Export into request["folder"] what request["words"] name."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        main([*request["words"], "--out", request["folder"]])


def run_report(request: Mapping[str, Any]) -> None:
    """Write the page of a run."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        report(request["words"])
