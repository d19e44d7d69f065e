"""Every format has a look of its own, in the colour of its family."""

from __future__ import annotations

import colorsys
import itertools

import pytest

from quantkv.drawing.families import distance, family
from quantkv.drawing.style import BASELINE, STYLES, styles_for
from quantkv.report.html.looks import looks
from quantkv.spec import parse_spec, presets

HUES = {"8 bits": (185, 235), "4 bits": (10, 50), "fp8": (315, 350), "mixed": (45, 82), "kivi": (135, 175)}
"""What a reader calls blue, orange or brown, wine, olive and green, in degrees."""
CUSTOM = {
    "int8-token@g64": "8 bits",
    "int8-token-all": "8 bits",
    "int8-head+r0": "8 bits",
    "k.int8-channel@g32+v.int8-head": "8 bits",
    "int4-token@g64": "4 bits",
    "int4-head+r0+s0": "4 bits",
    "k.int4-channel@g64+v.int4-head": "4 bits",
    "int4-head+l0-1.fp16": "4 bits",
    "fp8-e5m2": "fp8",
    "k.int8-head+v.int4-channel@g32": "mixed",
    "k.fp8-e4m3+v.int4-head": "mixed",
    "k8v4+s0": "mixed",
    "kivi-4+r0": "kivi",
    "k.int4-channel@g32.near+f128+v.int4-token@g32.near+r0+f1+s0": "kivi",
}


def hue(color: str) -> float:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return 360 * colorsys.rgb_to_hls(*parts)[0]


@pytest.mark.parametrize(("label", "name"), CUSTOM.items())
def test_a_format_is_drawn_in_the_colour_of_its_family(label: str, name: str) -> None:
    low, high = HUES[name]
    assert low <= hue(styles_for([label])[label].color) <= high


@pytest.mark.parametrize(("spec", "name"), CUSTOM.items())
def test_a_name_of_the_user_is_drawn_by_its_spec(spec: str, name: str) -> None:
    """With the printed form of the spec, as rows hold it."""
    low, high = HUES[name]
    assert low <= hue(styles_for(["ours"], {"ours": str(parse_spec(spec))})["ours"].color) <= high


def test_every_preset_is_of_the_family_that_its_colour_shows() -> None:
    assert set(presets()) <= set(STYLES)
    for label in presets():
        found = family(label)
        if found == "float":
            assert len({STYLES[label].color[at : at + 2] for at in (1, 3, 5)}) == 1
        elif label != "kivi-2":  # pink, as documented
            assert HUES[found][0] <= hue(STYLES[label].color) <= HUES[found][1]


TWELVE = {
    "names": [f"mine-{index}" for index in range(12)],
    "policies": [f"int4-head+r{16 * index}" for index in range(12)],
    "blues": [f"int8-token@g{16 << index}" for index in range(6)] + [f"int8-head+s{i}" for i in range(6)],
    "mixed": [f"k.int{k}-head+v.int{v}-head" for k in (8, 6, 4, 3) for v in (8, 5, 2) if k != v] + ["x"],
}


@pytest.mark.parametrize("labels", TWELVE.values(), ids=TWELVE)
def test_twelve_formats_of_the_user_look_apart_from_each_other_and_from_presets(labels: list[str]) -> None:
    found = styles_for([BASELINE, *presets(), *labels])
    custom = {label: found[label] for label in labels}
    assert len({style.color for style in found.values()}) == len(found)
    assert len({(str(s.marker), str(s.linestyle)) for s in custom.values()}) == len(labels)
    for one, other in itertools.combinations(custom.values(), 2):
        assert one.marker != other.marker
        assert distance(one.color, other.color) > 0.04
    for label, style in custom.items():
        akin = [STYLES[name] for name in presets() if family(name) == family(label)]
        assert style.marker not in [other.marker for other in akin]


def test_colours_of_the_page_are_those_of_the_figures_and_stay_apart_in_the_dark() -> None:
    labels = [*TWELVE["names"], *TWELVE["policies"]]
    found = {look["label"]: look for look in looks(labels, "f", {"mine-0": "int4-head"})}
    styles = styles_for([BASELINE, *labels], {"mine-0": "int4-head"})
    assert {label: look["light"] for label, look in found.items()} == {n: s.color for n, s in styles.items()}
    assert len({look["dark"] for look in found.values()}) == len(found)


def test_a_preset_looks_the_same_whatever_else_is_drawn() -> None:
    assert styles_for([*STYLES, *TWELVE["policies"]])["int4-head"] == STYLES["int4-head"]


def test_a_single_format_of_the_user_looks_the_same_in_any_company_of_presets() -> None:
    assert styles_for(["ours"])["ours"] == styles_for([*STYLES, "ours"])["ours"]


@pytest.mark.parametrize(
    ("colors", "expected"),
    [(("#000000", "#FFFFFF"), 1.0), (("#123456", "#123456"), 0.0), (("#808080", "#FFFFFF"), 0.4)],
)
def test_distance_of_colours(colors: tuple[str, str], expected: float) -> None:
    """Black and white are one apart; half of sRGB's grey has the lightness (0.2159 ** (1/3) = 0.600)."""
    assert distance(*colors) == pytest.approx(expected, abs=2e-3)
