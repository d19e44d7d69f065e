"""Notebooks are kept without outputs; a build runs each of them from its beginning and makes a page of it."""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from nbclient import NotebookClient
from nbconvert import MarkdownExporter
from nbconvert.preprocessors import CoalesceStreamsPreprocessor

SECONDS_PER_CELL = 300
QUIET = ["--log-level=ERROR"]
"""A kernel on this machine warns of the network that it does not use."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path in sorted((Path(config.docs_dir) / "notebooks").glob("*.ipynb")):
        for name, content in notebook_page(path).items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    return files


def notebook_page(path: Path) -> dict[str, str | bytes]:
    """The page of a notebook and its figures, by file name. A cell that fails stops the build."""
    exporter = MarkdownExporter()
    exporter.register_preprocessor(CoalesceStreamsPreprocessor, enabled=True)
    text, resources = exporter.from_notebook_node(executed(path), {"output_files_dir": f"{path.stem}_files"})
    return {f"{path.stem}.md": _plain_tables(text), **resources["outputs"]}


def executed(path: Path) -> Any:
    """The notebook with the outputs of a run in an empty folder."""
    notebook = nbformat.read(path, as_version=4)
    with TemporaryDirectory() as folder:
        NotebookClient(
            notebook,
            timeout=SECONDS_PER_CELL,
            extra_arguments=QUIET,
            resources={"metadata": {"path": folder}},
        ).execute()
    for cell in notebook.cells:  # standard error holds progress bars, and warnings about this machine
        if cell.cell_type == "code":
            cell.outputs = [out for out in cell.outputs if out.get("name") != "stderr"]
    return notebook


def _plain_tables(text: str) -> str:
    """Data frames without pandas' own style, so that they look like every other table of the site."""
    text = re.sub(r"<style scoped>.*?</style>\n*", "", text, flags=re.DOTALL)
    return text.replace('<table border="1" class="dataframe">', "<table>")
