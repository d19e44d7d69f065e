"""A plan on a terminal: what it is for, a line per format, and what the numbers leave out."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table

from quantkv.planner.planning import Plan, PlanRow
from quantkv.planner.sizes import both_sizes
from quantkv.wording.numbers import DASH, significant
from quantkv.wording.streams import bare_table

NOT_COUNTED = (
    "Not counted: activations, logits, fragments of the memory allocator, anything else on the device; "
    "--allowance leaves room for them."
)


def plan_table(plan: Plan) -> Iterator[RenderableType]:
    yield from _head(plan)
    yield ""
    yield _table(plan)
    yield ""
    yield from _notes(plan)


def _head(plan: Plan) -> Iterator[str]:
    yield (
        f"{plan.model} ({plan.family}): {plan.parameters:,} parameters, "
        f"{both_sizes(plan.weights_bytes)} of weights in {plan.weights_dtype}"
    )
    layers = ", ".join(f"{count} × {kind}" for kind, count in plan.layers.items())
    limit = f"{plan.position_limit:,} tokens" if plan.position_limit else "unstated"
    yield f"cache layers: {layers}; position limit: {limit}; exact tokens in {plan.dtype}"
    allowance = f" and an allowance of {both_sizes(plan.allowance_bytes)}" if plan.allowance_bytes else ""
    yield (
        f"memory: {both_sizes(plan.memory_bytes)} ({plan.memory_where}); "
        f"weights{allowance} leave {both_sizes(max(0, plan.cache_room))} to the cache"
    )


def _table(plan: Plan) -> Table:
    rows = "1 sequence" if plan.batch == 1 else f"{plan.batch} sequences"
    at = f"{plan.context:,} tokens"
    sizes = ("bytes\nper token", f"{at}, {rows}\nbytes", "\nGB (1e9)", "\nGiB (2^30)")
    limits = (f"longest context\n{rows}", f"largest batch\n{at}")
    table = bare_table(("format", *sizes, *limits), left=("format",))
    for row in plan.rows:
        table.add_row(row.format, *_cells(plan, row))
    return table


def _cells(plan: Plan, row: PlanRow) -> list[str]:
    total = row.bytes_total
    if total is None or row.bytes_per_token is None:
        return [DASH] * 6
    sizes = (significant(total / unit, 4) for unit in (1e9, 2**30))
    batch = "no limit" if row.largest_batch is None else f"{row.largest_batch:,}"
    return [f"{row.bytes_per_token:,.0f}", f"{total:,}", *sizes, _longest(plan, row), batch]


def _longest(plan: Plan, row: PlanRow) -> str:
    """What memory allows, with a star where the model's positions end before."""
    fits = row.longest_context
    text = "no limit" if fits is None else f"{fits:,}"
    return f"{text} *" if plan.position_limit and (fits is None or fits > plan.position_limit) else text


def _notes(plan: Plan) -> Iterator[str]:
    limit = plan.position_limit
    if plan.weights_note:
        yield plan.weights_note
    if any(_longest(plan, row).endswith("*") for row in plan.rows):
        yield f"* more than the {limit:,} positions the model was made for: memory is not what limits it"
    if limit is not None and plan.context > limit:
        yield f"{plan.context:,} tokens are beyond the model's position limit of {limit:,}"
    if plan.cache_room < 0:
        what = "weights and allowance" if plan.allowance_bytes else "the weights alone"
        yield f"{what} need {both_sizes(-plan.cache_room)} more than there is"
    whys = {row.why: [r.format for r in plan.rows if r.why == row.why] for row in plan.rows if row.why}
    for why, names in whys.items():
        yield f"{', '.join(names)}: {why}"
    if any((row.bytes_after_prefill or 0) > (row.bytes_total or 0) for row in plan.rows):
        most = max(row.bytes_after_prefill or 0 for row in plan.rows)
        yield (
            "Layers with a sliding window hold a prompt that comes in one call until the next step: up to "
            f"{both_sizes(most)} right after it. Longest context and largest batch are those while decoding."
        )
    yield (
        "bytes per token: what one more token costs in the long run. The others are exact: with sinks, "
        "recent window, reserve, pages that are not full, and layers that stay exact."
    )
    yield NOT_COUNTED
