"""What a user may have named (formats, models, texts, reasons, sources), as plain words wherever it is shown.

One function for each kind of file: ``latex``, ``markdown``. Pages are escaped by their template, CSV by its
quotes, figures by ``drawing.text``. What cannot be shown is named by its code point, ``U+1F999``.
"""

from __future__ import annotations

import re
import unicodedata

from quantkv.wording.numbers import DASH, MINUS

UNSEEN = ("Cc", "Cs", "Cn")
"""Control characters, halves of characters, and what is no character (yet)."""
TURNING = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Turn the direction of all that follows."""
APART = "\0"
"""Stands in a text, which has none of its own, where LaTeX must not join two characters."""

_LATEX = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"}, "\\": r"\textbackslash{}", "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}", "`": r"\textasciigrave{}", '"': r"\texttt{\char34}", "|": r"\textbar{}",
    "<": r"$<$", ">": r"$>$", "≥": r"$\geq$", "≤": r"$\leq$", "≈": r"$\approx$", "→": r"$\to$",
    "∞": r"$\infty$", "±": r"$\pm$", "×": r"$\times$", "✗": r"$\times$", "÷": r"$\div$",
    "°": r"$^{\circ}$", "µ": r"$\mu$", "…": r"\ldots{}", APART: "{}", MINUS: "$-$", DASH: "---",
}  # fmt: skip
_GREEK = {
    "αβγδεζηθικλμνξπρστυφχψω": "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi "
    "rho sigma tau upsilon phi chi psi omega",
    "ΓΔΘΛΞΠΣΥΦΨΩ": "Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega",
}
_LATEX |= {
    letter: rf"$\{name}$"
    for letters, names in _GREEK.items()
    for letter, name in zip(letters, names.split(), strict=True)
}
_PLAIN_IN_LATEX = re.compile(r"[\u0020-\u007e\u00a0-\u017f–‘’“”†‡•]")
"""What every engine of LaTeX prints as it stands, the characters of ``_LATEX`` apart."""


def one_line(text: str) -> str:
    """Without breaks, and with the code points of what cannot be seen."""
    return visible(" ".join(text.split()))


def visible(text: str) -> str:
    """With the code points of what cannot be seen, or would move a terminal's cursor."""
    return "".join(code_point(c) if c in TURNING or unicodedata.category(c) in UNSEEN else c for c in text)


def code_point(character: str) -> str:
    return f"U+{ord(character):04X}"


def latex(text: str) -> str:
    """Every special character of LaTeX escaped, powers of ten set as such; any engine prints the result."""
    text = one_line(text)
    pieces, end = [], 0
    for match in re.finditer(rf"(?<=[\d\]])e{MINUS}(\d+)(?![\w.])", text):
        pieces += [_latex(text[end : match.start()]), rf"$\times10^{{-{match[1]}}}$"]
        end = match.end()
    guard = "{}" if text.startswith(("[", "*")) else ""  # a line of a table would take them for its own
    return guard + "".join(pieces) + _latex(text[end:])


def _latex(text: str) -> str:
    """Two hyphens, commas or quotes in a row are kept apart: LaTeX would make one character of them."""
    apart = re.sub(r"(?<=-)-|(?<=,),|(?<=')'", rf"{APART}\g<0>", text)
    return "".join(map(_latex_character, apart))


def _latex_character(character: str) -> str:
    known = _PLAIN_IN_LATEX.match(character)
    return _LATEX.get(character, character if known else code_point(character))


def markdown(text: str) -> str:
    """A cell, a title, or words of a paragraph that read as they stand, as CommonMark and GitHub have it."""
    text = re.sub(r"[\\|*_<`~$#]", r"\\\g<0>", one_line(text)).replace("](", r"]\(")
    return re.sub(r"&(?=#?\w+;)", r"\&", text)


def paragraph(text: str) -> str:
    """The same where a line begins, which must not begin a list or a quotation."""
    text = re.sub(r"^(\d+)(?=[.)](\s|$))", r"\1\\", markdown(text))
    return re.sub(r"^(>|[-+=]+(?=\s|$))", r"\\\1", text)
