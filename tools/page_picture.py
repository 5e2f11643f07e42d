"""A picture of the page of `python -m serve`, for the documentation: asks a question in Chromium and saves the screen.

python -m serve --config configs/demo.yaml
python -m tools.page_picture "Who built the ferry Oarabel?" --out docs/images/serve.png
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

from commands.arguments import run_command


def main() -> None:
    """Ask, wait for the answers, open the first piece of evidence of each, and save the picture."""
    parser = argparse.ArgumentParser(prog="python -m tools.page_picture", description=__doc__.splitlines()[0])
    parser.add_argument("question")
    parser.add_argument("--url", default="http://127.0.0.1:8090")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1000, "height": 900})
        page.goto(given.url)
        page.wait_for_selector("#first option", state="attached")
        page.fill("#text", given.question)
        page.click("#ask")
        page.wait_for_selector("#ask:enabled", timeout=600_000)
        for summary in page.locator(".evidence li:first-child summary").all():
            summary.click()
        page.screenshot(path=given.out)
        browser.close()


if __name__ == "__main__":
    run_command(main)
