"""Draws assets/decode-exact.svg: which keys each query reads decoded, by the rule of `quantkv.policy` itself.

python docs/hooks/diagram.py > docs/assets/decode-exact.svg
"""

from __future__ import annotations

from quantkv.policy import Window

WINDOW = Window(sinks=2, recent=4, flush=4, reserve=0)
PROMPT, TOKENS = 10, 26
CELL, LEFT, TOP = 17, 34, 28
STYLE = """
  .packed { fill: #d97706 }
  .sink { fill: #0d9488 }
  .recent { fill: #3b82f6 }
  .prompt { fill: #94a3b8 }
  .line { stroke: var(--md-default-fg-color, #1f2328); fill: none; stroke-width: 2 }
  .cut { stroke-dasharray: 5 4; stroke-width: 1.2 }
  text { fill: var(--md-default-fg-color, #1f2328); font: 15px sans-serif }
  @media (prefers-color-scheme: dark) {
    .line { stroke: var(--md-default-fg-color, #e6edf3) }
    text { fill: var(--md-default-fg-color, #e6edf3) }
  }
"""


def kind(query: int, key: int) -> str:
    """How query `query` reads key `key`; the prompt came in one call, every later token in its own."""
    if query < PROMPT:
        return "prompt"
    if key < WINDOW.sinks:
        return "sink"
    return "packed" if key < WINDOW.boundary(query) else "recent"


def drawing() -> str:
    side = LEFT + TOKENS * CELL
    cells = "\n".join(_cell(query, key) for query in range(TOKENS) for key in range(query + 1))
    prompt_end = TOP + PROMPT * CELL
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {side + 4} {TOP + TOKENS * CELL + 26}">
<style>{STYLE}</style>
<text x="{LEFT}" y="18">key j →</text>
<text transform="translate(20 {TOP + 10}) rotate(90)">query i →</text>
{cells}
<path class="line" d="{_steps()}"/>
<path class="line cut" d="M{LEFT} {prompt_end - 0.5:g}H{side}"/>
<text x="{LEFT + 12 * CELL}" y="{prompt_end - 9}">prompt, one call</text>
<text x="{LEFT + 15 * CELL}" y="{prompt_end + 20}">decoding</text>
<text x="{LEFT + WINDOW.boundary(TOKENS - 1) * CELL - 12}" y="{TOP + TOKENS * CELL + 20}">b(i)</text>
</svg>
"""


def _cell(query: int, key: int) -> str:
    x, y, size = LEFT + key * CELL + 1, TOP + query * CELL + 1, CELL - 2
    return f'<rect class="{kind(query, key)}" x="{x}" y="{y}" width="{size}" height="{size}" rx="2"/>'


def _steps() -> str:
    """The flush boundary, down the rows of the decoding queries."""
    start = f"M{LEFT + WINDOW.boundary(PROMPT) * CELL} {TOP + PROMPT * CELL}"
    rows = (f"H{LEFT + WINDOW.boundary(q) * CELL}v{CELL}" for q in range(PROMPT, TOKENS))
    return start + "".join(rows)


if __name__ == "__main__":
    print(drawing(), end="")
