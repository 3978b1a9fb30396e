"""A damaged row of a table is left out and counted, and the rows below it are read."""

import pytest

from dfx_agent.node.logs.reader import open_logs

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


HEADER = "step,reward,kl\n"
ROW = "{},0.5,0.1\n".format


@pytest.mark.parametrize("place", [0, 2, 4])
@pytest.mark.parametrize(
    "damaged", ["7,0.5\n", "7,,0.5,0.1\n", "7,a, b,0.5,0.1\n", "7,0.5,0.17,0.5,0.1\n"]
)
def test_a_row_of_a_csv_with_another_number_of_cells(tmp_path, damaged, place):
    rows = [ROW(step) for step in range(4)]
    text = HEADER + "".join([*rows[:place], damaged, *rows[place:]])
    assert read(tmp_path / "a.csv", text) == ([0, 1, 2, 3], 1)


@pytest.mark.parametrize(("mark", "end"), [("", ","), (",", ""), (",,", ","), ("", ",, ")])
def test_delimiters_behind_the_last_cell_are_no_damage(tmp_path, mark, end):
    rows = "".join(f"{step},0.5,0.1{end}\n" for step in range(4))
    text = f"step,reward,kl{mark}\n{rows}"
    assert read(tmp_path / "a.csv", text) == ([0, 1, 2, 3], 0)


def test_a_row_of_a_table_of_values_with_another_number_of_cells(tmp_path):
    rows = [f"{step},{key},0.5\n" for step in range(4) for key in ("reward", "kl")]
    text = "step,key,value\n" + "".join([*rows[:4], "2,reward\n", "2,reward,0.7,3,kl,0.1\n"])
    assert read(tmp_path / "a.csv", text + "".join(rows[4:])) == ([0, 1, 2, 3], 2)
