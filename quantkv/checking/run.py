"""`check`: measure formats at one context, judge them, and look inside where they hurt."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from quantkv.arms.arm import Progress, Result, ignore
from quantkv.checking.judge import judge
from quantkv.checking.reasons import advice, alternatives, diagnose
from quantkv.data import Text, bos_id, load_text, tokenize
from quantkv.errors import QuantKVError
from quantkv.instruments.verdict import Finding, Thresholds, Verdict
from quantkv.instruments.windows import make_windows
from quantkv.measurements.checks import beyond_range
from quantkv.measurements.inside.inspection import Inspection, inspect, named_specs
from quantkv.measurements.inside.layer_errors import packs
from quantkv.measurements.inside.prediction import predicted_damage
from quantkv.measurements.quality.bits import bits_packed
from quantkv.measurements.quality.run import quality_block
from quantkv.rows.row import strict_json
from quantkv.spec.specs import CacheSpec

SCORED_SHARE = 8
"""At most one position in so many of a short model is scored, the rest is context."""
QUERIES = 32
FIGURES = (
    "kl_mean", "kl_low", "kl_high", "top1_agreement", "packed_read_fraction",
    "bits_packed", "bits_cache", "bits_cache_16",
)  # fmt: skip
DEFAULT_THRESHOLDS = Thresholds()


@dataclass(slots=True)
class FormatCheck:
    """One format: what was found, why it hurts, what to try instead, and the numbers behind that."""

    label: str
    spec: CacheSpec
    findings: list[Finding]
    figures: dict[str, float | None] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        return max(found.verdict for found in self.findings)

    @property
    def hurts(self) -> bool:
        return self.verdict in (Verdict.CAUTION, Verdict.UNFIT)

    @property
    def can_be_explained(self) -> bool:
        """Whether damage was measured that the inside views may explain: rounding, not overflow."""
        kl = self.figures.get("kl_mean")
        return self.hurts and not self.spec.is_raw and kl is not None and math.isfinite(kl)

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": self.label,
            "spec": str(self.spec),
            "verdict": self.verdict.word,
            "findings": [{"verdict": f.verdict.word, "words": f.words} for f in self.findings],
            "reasons": self.reasons,
            "advice": self.advice,
            **strict_json(self.figures),
        }


@dataclass(slots=True)
class Check:
    """The answer of `check`; the worst format decides."""

    context: int
    score: int
    windows: int
    thresholds: Thresholds
    notes: list[str]
    formats: list[FormatCheck]

    @property
    def verdict(self) -> Verdict:
        return max(result.verdict for result in self.formats)

    def to_dict(self) -> dict[str, Any]:
        thresholds = {"fit": self.thresholds.fit, "caution": self.thresholds.caution}
        asked = {"context": self.context, "score": self.score, "windows": self.windows}
        formats = [result.to_dict() for result in self.formats]
        found = {"notes": self.notes, "formats": formats, "verdict": self.verdict.word}
        return asked | {"thresholds": thresholds} | found


def check(
    model: Any,
    tok: Any,
    formats: Iterable[str | CacheSpec] | Mapping[str, str | CacheSpec],
    *,
    text: str | Text | dict[str, Any] = "python-docs",
    context: int = 1024,
    windows: int = 8,
    score: int = 128,
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
    seed: int = 0,
    progress: Progress | None = None,
) -> Check:
    """Is each format fit for this model? Teacher-forced KL at `context`, then reasons where it is not.

    A model that reads fewer tokens is checked at what fits, and the notes say so. A format that cannot be
    measured gets the verdict UNCHECKED and its reason; the others go on.
    """
    specs = named_specs(formats)
    if not specs:
        raise QuantKVError("no format to check; name one, such as int8-head")
    loaded = load_text(text)
    ids, bos = tokenize(loaded, tok), bos_id(tok)
    context, score, notes = fitted(model, context, score)
    plan = make_windows(ids, span=context, score=score, windows=windows, seed=seed, bos_id=bos)
    measured = quality_block(
        model,
        plan.at(context),
        specs,
        context=context,
        starts=plan.starts,
        progress=progress or ignore,
        seed=seed,
    )
    results = [_judged(label, spec, measured[label], model, thresholds) for label, spec in specs.items()]
    hurt = {result.label: result.spec for result in results if result.can_be_explained}
    if hurt:
        window = plan.at(context)[0][: context + min(score, QUERIES)]
        _explain(model, window, hurt, {r.label: r for r in results}, context)
    return Check(context, score, windows, thresholds, notes, results)


def fitted(model: Any, context: int, score: int) -> tuple[int, int, list[str]]:
    """Context and scored tokens that the model can read, and a note where they are fewer than asked for."""
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if limit is None or context + score <= limit:
        return context, score, []
    score = max(1, min(score, limit // SCORED_SHARE))
    context = min(context, limit - score)
    note = f"the model reads {limit} tokens: checked at context {context} with {score} scored tokens a window"
    return context, score, [note]


def _judged(label: str, spec: CacheSpec, result: Result, model: Any, thresholds: Thresholds) -> FormatCheck:
    if result["status"] != "ok":
        return FormatCheck(label, spec, [Finding(Verdict.UNCHECKED, result["reason"])])
    quality = result["quality"]
    figures = {name: quality[name] for name in FIGURES}
    found = FormatCheck(label, spec, judge(quality, model, spec, thresholds), figures)
    if found.hurts:
        found.reasons += beyond_range(result["effective"]["saturated"])
    return found


def _explain(
    model: Any, ids: Any, hurt: Mapping[str, CacheSpec], results: Mapping[str, FormatCheck], context: int
) -> None:
    """Reasons and advice for the formats that hurt, from two looks inside: at them, and at what may be
    better."""
    options: dict[str, Any] = {"context": context, "queries": len(ids) - context}
    seen = inspect(model, ids, hurt, **options)
    diagnoses = {label: diagnose(seen, label, spec) for label, spec in hurt.items()}
    near = {
        label: {k: v for k, v in alternatives(spec, diagnoses[label]).items() if packs(v, context)}
        for label, spec in hurt.items()
    }
    others = inspect(model, ids, {k: v for found in near.values() for k, v in found.items()}, **options)
    for label in hurt:
        results[label].reasons += diagnoses[label].words
        results[label].advice = _advice(model, label, near[label], (seen, others))


def _advice(
    model: Any, label: str, near: Mapping[str, CacheSpec], seen: tuple[Inspection, Inspection]
) -> list[str]:
    own, others = (predicted_damage(look.errors) if len(look.errors) else {} for look in seen)
    predicted = {label: float(own[label])} | {name: float(others[name]) for name in near}
    return advice(predicted, label, {name: bits_packed(model, spec) for name, spec in near.items()})
