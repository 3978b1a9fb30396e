"""Reports that a crash cut or garbled are counted as damaged; what is intact is not."""

import pytest

from dfx_agent.ingest.reader import open_logs

DICT = "{{'loss': 0.1, 'reward': {}, 'kl': 0.1}}\n".format
LINE = "step={} reward=0.5 kl=0.1\n".format
ROW = "{},0.5,0.1\n".format


def counted(path, text):
    """(rows, damaged lines) of a log."""
    path.write_text(text)
    (log,) = open_logs(path)
    return len(list(log.rows())), log.num_left_out


@pytest.mark.parametrize(
    ("cut", "num"),
    [
        ("{'loss': 0.1, 'rew\n", 1),
        ("{'loss': 0.1, 'rew", 1),
        ("{'loss': 0.1, 'rew" + DICT(0.5), 1),
        ("{'step': 1, 'reward': 0.5, 'x\n", 1),
        ("{'reward': 0.5, 'nested': {'a': 1}\n", 1),
        ("{'actor': {'lr': 1e-6, 'kl_coef': 0.1\n", 0),
        ("{'loss': 0.1,\n 'reward': 0.5}\n", 0),
        ("the set {'reward', 'kl' was tried\n", 0),
    ],
)
@pytest.mark.parametrize("num_behind", [0, 2])
def test_a_printed_dict_that_is_cut(tmp_path, cut, num, num_behind):
    text = DICT(0.5) + DICT(0.75) + cut + DICT(0.25) * min(num_behind, cut.endswith("\n"))
    _, num_damaged = counted(tmp_path / "a.log", text)
    assert num_damaged == num


@pytest.mark.parametrize(
    ("line", "num"),
    [
        ("step=4 reward=0.5 kl\n", 1),
        ("step=4 rew", 1),
        ("step=4 reward=0x.f3 kl=0.1\n", 1),
        ("step=4 reward=\ufffd\ufffd kl=0.1\n", 1),
        ("step=4 reward=0.5 kl=None\n", 0),
        ("step=4 reward=0.5\n", 0),
        ("step=4 val_loss=0.5\n", 0),
        ("the reward: good\n", 0),
        ("saved step 4 of the reward model\n", 0),
    ],
)
def test_a_line_of_pairs_that_is_cut_or_garbled(tmp_path, line, num):
    _, num_damaged = counted(tmp_path / "a.log", LINE(1) + LINE(2) + LINE(3) + line)
    assert num_damaged == num


@pytest.mark.parametrize(
    ("row", "rows", "num"),
    [
        ('9,"0.5,0.1\n', 4, 1),
        ('9,"0.5\n9,"0.5,0.1\n', 4, 2),
        ('9,0.5,"0.1"\n', 5, 0),
    ],
)
def test_a_quote_that_no_line_closes_costs_its_row_alone(tmp_path, row, rows, num):
    text = "step,reward,kl\n" + ROW(1) + ROW(2) + row + ROW(10) + ROW(11)
    assert counted(tmp_path / "a.csv", text) == (rows, num)


def test_a_text_of_several_lines_is_no_damage(tmp_path):
    text = "".join(f'{i},0.5,"So,\n1,2\nis the answer"\n' for i in range(4))
    assert counted(tmp_path / "a.csv", "step,reward,text\n" + text) == (4, 0)
