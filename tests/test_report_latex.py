"""LaTeX as a paper takes it in: balanced, escaped, as many cells as columns, and it compiles where TeX is."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from rows import failed_row, quality_row, sweep_rows
from test_paper import retrieval_row

from quantkv.report.write import write_report

HOSTILE = r"a_b&c%d#e$f{g}~h^i\j<k>"
DOCUMENT = r"""\documentclass[twocolumn]{article}
\usepackage{booktabs,graphicx}
\begin{document}
%s
\end{document}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("latex")
    rows = [*sweep_rows(contexts=(512, 2048)), quality_row(HOSTILE, 512, values={"kl_mean": 0.3})]
    rows += [failed_row("memory", "kivi-2", 8192, HOSTILE), retrieval_row(HOSTILE, 512)]
    write_report(
        rows, place, figures=["kl", "overview", "retrieval"], files=["pdf"], tables=["tex"], html=False
    )
    return place


def sources(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.tex"))


def test_environments_and_braces_balance_and_no_special_is_bare(folder: Path) -> None:
    assert [path.name for path in sources(folder)] == ["figures.tex", "retrieval.tex", "table.tex"]
    for path in sources(folder):
        text = path.read_text()
        opened: list[str] = []
        for what, name in re.findall(r"\\(begin|end)\{([^}]*)\}", text):
            assert what == "begin" or opened.pop() == name, path.name
            opened += [name] * (what == "begin")
        assert opened == []
        bare = re.sub(r"\\[\\{}]", "", text)
        assert bare.count("{") == bare.count("}"), path.name
        for line in (line for line in text.splitlines() if not line.startswith("%")):
            assert not re.search(r"(?<!\\)[#%](?!$)", line), line
            words = re.sub(r"\$[^$]*\$|\\(label|includegraphics)[^ ]*", "", line)
            assert not re.search(r"(?<!\\)[_^]", words), line


def test_every_line_has_a_cell_for_each_column(folder: Path) -> None:
    for name in ("table.tex", "retrieval.tex"):
        text = (folder / name).read_text()
        for columns, body in re.findall(r"tabular\}\{@\{\}(\w+)@\{\}\}(.*?)\\end\{tabular", text, re.DOTALL):
            lines = [line for line in body.splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
            assert len(lines) > 1
            assert {len(re.findall(r"(?<!\\)&", line)) + 1 for line in lines} == {len(columns)}


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex on this machine")
def test_it_compiles_without_a_complaint(folder: Path) -> None:
    inputs = "\n".join(rf"\input{{{path.stem}}}" for path in sources(folder))
    (folder / "paper").mkdir()
    (folder / "paper" / "paper.tex").write_text(DOCUMENT % inputs)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-output-directory", "paper"]
    done = subprocess.run([*command, "paper/paper.tex"], cwd=folder, capture_output=True, check=False)
    said = done.stdout.decode(errors="replace")
    assert done.returncode == 0, said[-2000:]
    assert "Missing character" not in said and "Overfull" not in said
