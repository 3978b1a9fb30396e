"""A damaged row of a table is left out and counted, and the rows below it are read."""

import pytest

from dfx_agent.ingest.reader import open_logs

BARS = ("| step | reward | kl |\n|---|---|---|\n", "| {} | 0.5 | 0.1 |\n")
BLANKS = ("  step   reward   kl  \n", "  {}   0.5   0.1  \n")


def read(path, text):
    """Steps of a log, and the number of its damaged lines."""
    path.write_text(text)
    (log,) = open_logs(path)
    return [step for step, _ in log.rows()], log.num_left_out


def table(form, damaged, num_behind=3):
    header, row = form
    rows = [row.format(step) for step in range(4 + num_behind)]
    return header + "".join([*rows[:3], damaged, *rows[4:]])


@pytest.mark.parametrize("num_behind", [0, 3])
@pytest.mark.parametrize(
    ("form", "damaged"),
    [
        (BARS, "| 3 | 0.5 |\n"),
        (BARS, "| 3 | 0.5 | 0.1 | 7 |\n"),
        (BARS, "| 3 | -0.\n"),
        (BARS, "| 3 | word |\n"),
        (BLANKS, "  3   0.5  \n"),
        (BLANKS, "  3   0.5   0.1   7  \n"),
        (BLANKS, "  3   No Log  \n"),
        (BLANKS, "3 0.5 0.1\n"),
    ],
)
def test_a_printed_row_with_another_number_of_cells(tmp_path, form, damaged, num_behind):
    text = table(form, damaged, num_behind)
    expected = [0, 1, 2, *range(4, 4 + num_behind)]
    assert read(tmp_path / "a.log", text) == (expected, 1)


@pytest.mark.parametrize(
    "line",
    [
        "2026-11-28 10:00:00  INFO  saved\n",
        "3  workers  have  started\n",
        " 10%|#   | 3/30 [00:01<00:09]\n",
        "| epoch | accuracy |\n|---|---|\n| 1 | 0.5 |\n",
    ],
)
@pytest.mark.parametrize("form", [BARS, BLANKS])
def test_another_line_is_no_damage_and_does_not_end_the_table(tmp_path, form, line):
    assert read(tmp_path / "a.log", table(form, line)) == ([0, 1, 2, 4, 5, 6], 0)
