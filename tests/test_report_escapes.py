"""Whatever a user names is printed as it stands: in LaTeX, Markdown and figures."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

from quantkv.drawing.text import drawn
from quantkv.wording.escapes import latex, markdown, one_line, paragraph

NAMES = (
    r"$\textbf{ours}$", "a_b", "50 %", "costs $5", "<b>x</b>", "a|b", "`x`", "two\nlines", "a\tb", "[x](y)",
    "*x*", "[x]", "~~x~~", "# x", "> x", "1. x", "- x", "&lt;", "\\", "\\$", "{x}^2", "x$y$z", "_x", "a--b",
    '"x"', "עברית", "x" * 300, "++", "C#",
)  # fmt: skip


@pytest.mark.parametrize(
    ("plain", "escaped"),
    [
        ("a_b & 5 %", r"a\_b \& 5 \%"),
        (r"$\textbf{ours}$", r"\$\textbackslash{}textbf\{ours\}\$"),
        ("#1 {x}^2~\\", r"\#1 \{x\}\textasciicircum{}2\textasciitilde{}\textbackslash{}"),
        ('<b> | ` "', r"$<$b$>$ \textbar{} \textasciigrave{} \texttt{\char34}"),
        ("l-4--1, a---b", "l-4-{}-1, a-{}-{}-b"),
        ("''x'',,", "'{}'x'{}',{},"),
        ("[a]", "{}[a]"),
        ("*a", "{}*a"),
        ("one\n\n two\t", "one two"),
        ("\x00 \ud800", "U+0000 U+D800"),
        ("α, Ω and 😀", r"$\alpha$, $\Omega$ and U+1F600"),
        ("Müller, Łódź", "Müller, Łódź"),
        ("2.0 [1.6, 2.5]e−5", r"2.0 [1.6, 2.5]$\times10^{-5}$"),
        ("1.2e−8", r"1.2$\times10^{-8}$"),
        ("fp8-e4m3 and m1e5", "fp8-e4m3 and m1e5"),
        ("— ≥ ± −1", r"--- $\geq$ $\pm$ $-$1"),
    ],
)
def test_latex_has_no_special_character_of_a_text(plain: str, escaped: str) -> None:
    assert latex(plain) == escaped


def test_every_sign_of_the_keyboard_is_plain_in_latex_or_escaped() -> None:
    harmless = set("!'()*+,-./:;=?@[]")
    assert {sign for sign in string.punctuation if latex("x" + sign) == "x" + sign} == harmless


@pytest.mark.parametrize(
    ("plain", "shown"),
    [
        ("a\r\nb\t c ", "a b c"),
        ("bell\x07", "bellU+0007"),
        ("\ud83d", "U+D83D"),
        ("x\u202etxt", "xU+202Etxt"),
        ("é 漢字 😀", "é 漢字 😀"),
    ],
)
def test_one_line_names_what_cannot_be_seen(plain: str, shown: str) -> None:
    assert one_line(plain) == shown


def read(source: str, *, cell: bool) -> str:
    """What a reader sees, as GitHub's rules have it; fails where anything but plain words is seen."""
    reader = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    tokens = reader.parse(f"| x |\n| --- |\n| {source} |\n" if cell else f"{source}\n")
    inline = [token for token in tokens if token.type == "inline"][-1]
    assert {child.type for child in inline.children or []} <= {"text", "text_special"}
    assert cell or [token.type for token in tokens] == ["paragraph_open", "inline", "paragraph_close"]
    return "".join(child.content for child in inline.children or [])


@pytest.mark.parametrize("name", NAMES)
def test_markdown_reads_as_the_name_stands(name: str) -> None:
    assert read(markdown(name), cell=True) == one_line(name)
    assert read(paragraph(name), cell=False) == one_line(name)


@given(st.text(min_size=1).filter(str.strip))
def test_markdown_reads_as_any_text_stands(name: str) -> None:
    assert read(markdown(name), cell=True) == one_line(name)
    assert read(paragraph(f"{name}."), cell=False) == one_line(f"{name}.")


def test_dollars_are_no_mathematics_on_github() -> None:
    assert markdown("costs $5 or $6") == r"costs \$5 or \$6"


def shown(text: str) -> str:
    """What matplotlib draws of a text; fails where it takes any of it for mathematics."""
    figure = Figure()
    FigureCanvasAgg(figure)
    artist = figure.text(0, 0, text)
    figure.draw_without_rendering()
    lines = [artist._preprocess_math(line) for line in text.split("\n")]
    assert not any(mathematics for _, mathematics in lines)
    return "\n".join(line for line, _ in lines)


@pytest.mark.parametrize("name", [name for name in NAMES if len(name) < 200])
def test_a_figure_shows_a_name_as_it_stands(name: str) -> None:
    assert shown(drawn(name)) == one_line(name)


def test_a_figure_names_the_characters_its_font_lacks() -> None:
    assert drawn("漢 é 🦙") == "U+6F22 é U+1F999"


def test_a_figure_shows_both_ends_of_an_endless_name() -> None:
    text = drawn("a" * 1000 + "b" * 1000)
    assert text == "a" * 100 + " … " + "b" * 100


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("int4-head+r0+s0", ["int4-head", "+r0+s0"]),
        ("int4-head", ["int4-head"]),
        ("i+i", ["i+i"]),
        ("ab+", ["ab+"]),
        ("", [""]),
    ],
)
def test_names_are_broken_before_plus_signs(name: str, lines: list[str]) -> None:
    """Of 7 points, 40 hold nine signs of usual width."""
    assert drawn(name, 40.0).split("\n") == lines


@given(st.text("iWm+@ ", min_size=1, max_size=80), st.floats(10, 100))
def test_lines_are_as_long_as_there_is_room_and_lose_nothing(name: str, points: float) -> None:
    lines = drawn(name, points).split("\n")
    assert "".join(lines) == one_line(name)
    font = FontProperties(family="DejaVu Sans", size=7)
    widths = [TextPath((0, 0), f"|{line}|", prop=font).get_extents().width for line in lines]
    bars = TextPath((0, 0), "||", prop=font).get_extents().width
    assert all(width - bars <= points + 1 for width in widths)
