"""Drawings of assets/ go into the page itself, so that they follow its colours, and its own dark switch."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

DRAWING = re.compile(r'<img alt="([^"]*)" src="[^"]*assets/([\w-]+\.svg)" ?/?>')


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    def drawing(match: re.Match[str]) -> str:
        svg = (Path(config.docs_dir) / "assets" / match[2]).read_text()
        return svg.replace("<svg ", f'<svg role="img" aria-label="{match[1]}" ', 1)

    return DRAWING.sub(drawing, html)
