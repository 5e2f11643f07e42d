"""A page in a real browser."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")


def contrasts(page: Any, selectors: Sequence[str]) -> list[tuple[str, float]]:
    """Of the first element of each selector, the contrast of its colour with what is behind it."""
    found = page.evaluate(
        """(selectors) => {
      const levels = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map((level) => level / 255);
      const light = (colour) => levels(colour)
        .map((level) => level <= 0.03928 ? level / 12.92 : ((level + 0.055) / 1.055) ** 2.4)
        .reduce((sum, level, n) => sum + level * [0.2126, 0.7152, 0.0722][n], 0);
      const behind = (node) => {
        const colour = getComputedStyle(node).backgroundColor;
        return colour.endsWith(", 0)") && node.parentElement ? behind(node.parentElement) : colour;
      };
      return selectors.map((selector) => {
        const node = document.querySelector(selector);
        const pair = [light(getComputedStyle(node).color), light(behind(node))].sort((a, b) => b - a);
        return [selector, (pair[0] + 0.05) / (pair[1] + 0.05)];
      });
    }""",
        list(selectors),
    )
    return [(selector, contrast) for selector, contrast in found]
