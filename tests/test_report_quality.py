"""What tables and captions say of quality: new fields where they are, nothing where rows are older."""

from pathlib import Path
from typing import Any

import pytest
from rows import quality_row, sweep_rows

from quantkv.report.tables import markdown_table
from quantkv.report.write import write_report
from quantkv.rows.files import read_rows
from quantkv.studies.captions import caption
from quantkv.studies.columns import shown_columns
from quantkv.studies.study import Study, studies, summary_frame

SHIPPED = Path(__file__).parents[1] / "experiments" / "smollm2" / "rows"


def study(*values: dict[str, Any], **options: Any) -> Study:
    (found,) = studies([quality_row("kivi-2", 512 * 2**i, values=v, **options) for i, v in enumerate(values)])
    return found


def test_top5_has_a_column_and_the_scale_a_place_in_the_frame_and_the_caption():
    found = study({"top5_agreement": 0.914, "scale_bf16_kl": 1.04e-3}, {"top5_agreement": None})
    assert "top-5 (%)" in markdown_table(found) and "91.4" in markdown_table(found)
    assert found.frame["scale_bf16_kl"].tolist()[0] == 1.04e-3
    assert "; KL of the model in bf16 0.0010 at 512." in caption(found)


def test_rows_of_before_have_neither():
    found = study({})
    assert "top-5" not in markdown_table(found) and "bf16" not in caption(found)
    assert "top5" not in {column.name for column in shown_columns(found.records())}
    assert found.frame["top5_agreement"].isna().all() and found.frame["scale_bf16_kl"].isna().all()


@pytest.mark.parametrize(
    "protocol, said",
    [
        ({"preset": "gptq-2048", "score": 2047, "windows": 48, "prefill": "stream", "bos": "text"},
         "prefill stream, 48 windows of 2047 scored tokens, one BOS before the text, protocol gptq-2048;"),
        ({"preset": "fake-quant", "prefill": "final"}, "BOS in each window, protocol fake-quant;"),
        ({"bos": "none"}, "16 windows of 128 scored tokens, BOS none;"),
        ({"windows": 1}, ", 1 window of 128 scored tokens"),
    ],
)  # fmt: skip
def test_a_caption_names_the_protocol(protocol, said):
    assert said in caption(study({}, protocol=protocol))


def test_rows_of_two_protocols_are_two_studies():
    rows = [*sweep_rows((512,)), quality_row("kivi-2", 512, protocol={"preset": "fake-quant"})]
    assert len(studies(rows)) == 2


def test_shipped_rows_make_a_report(tmp_path):
    rows = read_rows(SHIPPED)
    paths = write_report(rows, tmp_path, figures=[], tables=["md", "csv"])
    assert {"table.md", "table.csv"} <= {path.name for path in paths}
    assert summary_frame(rows)["kl_mean"].notna().any()
