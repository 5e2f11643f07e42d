"""Take the pictures in docs/images, of a terminal's recorded output or of a page, with the Chromium of `make browser`.

script -q -c "stty cols 100 rows 30; ratchet ask QUESTION --config configs/demo.yaml" ask.typescript
python -m tools.pictures terminal ask.typescript docs/images/ask.png --command "ratchet ask ..."
python -m tools.pictures page runs/demo/report.html docs/images/report.png --width 1280 --height 1300
"""

from __future__ import annotations

import argparse
import io
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

COLUMNS = 100
TERMINAL = """<!doctype html><meta charset="utf-8"><style>
body {{ margin: 0; padding: 14px 18px; background: {background}; color: {foreground}; }}
pre {{ margin: 0; width: 100ch; white-space: pre-wrap; font: 13px/1.35 "DejaVu Sans Mono", monospace; }}
{stylesheet}
</style><pre>{code}</pre>"""


def terminal_page(recording: str, command: str) -> str:
    """The page of a recording of `script`. `command` stands above it behind a prompt."""
    # The first and the last line are those of `script` itself. Of a progress bar, rich keeps what stayed on its line.
    lines = [Text.from_ansi(line.rstrip("\r")) for line in recording.split("\n")]
    shown = [Text.assemble(("$ ", "green"), (command, "bold"))] if command else []
    shown += [line for line in lines if not line.plain.startswith(("Script started", "Script done"))]
    while not shown[-1].plain.strip():
        shown.pop()
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for line in shown:
        console.print(line, soft_wrap=True)
    return console.export_html(theme=MONOKAI, code_format=TERMINAL)


def take(
    source: str, path: Path, width: int, height: int, scheme: str = "light", seconds: float = 0, whole: bool = False
) -> None:
    """Take a picture of a file, an address or, where it begins with a tag, the text of a page, `seconds` after it is
    opened. With `whole` it is as high as the page."""
    with sync_playwright() as started:
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"])
        page = browser.new_page(
            viewport={"width": width, "height": height}, color_scheme="dark" if scheme == "dark" else "light"
        )
        if source.startswith("<"):
            page.set_content(source)
        else:
            page.goto(source if "://" in source else Path(source).resolve().as_uri())
        page.wait_for_timeout(1000 * seconds)
        page.screenshot(path=path, full_page=whole)
        browser.close()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.pictures")
    kinds = parser.add_subparsers(dest="kind", required=True)
    terminal = kinds.add_parser("terminal", help="what `script` recorded")
    terminal.add_argument("--command", default="", help="the command, shown above its output")
    page = kinds.add_parser("page", help="a file or an address")
    page.add_argument("--width", type=int, default=1400)
    page.add_argument("--height", type=int, default=1000)
    page.add_argument("--scheme", choices=["light", "dark"], default="light")
    page.add_argument("--seconds", type=float, default=0, help="wait as long before the picture")
    page.add_argument("--whole", action="store_true", help="as high as the page is")
    for kind in (terminal, page):
        kind.add_argument("source")
        kind.add_argument("out", type=Path)
    given = parser.parse_args()
    if given.kind == "page":
        take(given.source, given.out, given.width, given.height, given.scheme, given.seconds, given.whole)
        return
    recording = Path(given.source).read_text()
    take(terminal_page(recording, given.command), given.out, 860, 40, whole=True)


if __name__ == "__main__":
    main()
