"""Reports that a crash cut or garbled are counted as damaged; what is intact is not."""

import pytest

from dfx_agent.node.logs.reader import open_logs

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


VERL = "(TaskRunner pid=4) step:{} - actor/kl:0.1 - critic/score/mean:0.5 - timing_s/step:60.1\n"
VALIDATION = "(TaskRunner pid=4) step:{} - val-core/gsm8k/acc:0.5\n".format
SHORT = "(TaskRunner pid=4) step:10 - actor/kl:0.1 - critic/score/mean:0.5\n"


@pytest.mark.parametrize(
    ("line", "num_rows", "num"),
    [
        ("(TaskRunner pid=4) step:10 - actor/kl:0.1 - cri\n", 1, 1),
        ("(TaskRunner pid=4) step:10 - actor/kl:0.1 - critic/score/mean:0.5 - timing_s/st\n", 1, 1),
        (SHORT, 1, 1),
        ("step:10 - actor/kl:0.1 - critic/sc" + VERL.format(11), 2, 1),
        (VALIDATION(10), 1, 0),
        (VERL.format(10).strip() + " - val/score:0.5\n", 1, 0),
        (
            VERL.format(10).strip() + "\x1b[36m(WorkerDict pid=7)\x1b[0m INFO 10:05:59: saved\n",
            1,
            0,
        ),
        ("(TaskRunner pid=4) step:10 - actor/kl:0.1 - timing_s/step:60.1\n", 1, 0),
    ],
)
def test_a_line_of_verl_that_is_cut(tmp_path, line, num_rows, num):
    text = "".join(map(VERL.format, range(10)))
    assert counted(tmp_path / "a.log", text + line) == (10 + num_rows, num)
    behind = "".join(map(VERL.format, range(12, 15)))
    assert counted(tmp_path / "a.log", text + line + behind) == (13 + num_rows, num)


def test_few_lines_of_verl_do_not_say_what_all_of_them_have(tmp_path):
    text = "".join(map(VERL.format, range(4))) + SHORT
    assert counted(tmp_path / "a.log", text) == (5, 0)


def block(step: int) -> list[str]:
    """As Stable-Baselines prints a step."""
    return [
        "-----------------------------\n",
        "| rollout/        |         |\n",
        "|    ep_len_mean  | 200     |\n",
        f"|    ep_rew_mean  | 0.{step}     |\n",
        "| time/           |         |\n",
        f"|    iterations   | {step}       |\n",
        "| train/          |         |\n",
        "|    approx_kl    | 0.01    |\n",
        "-----------------------------\n",
    ]


@pytest.mark.parametrize(
    ("num_lines", "end", "num"),
    [
        (9, "", 0),
        (5, "", 1),
        (6, "", 1),
        (2, "|    ep_len", 1),
        (3, "|    ep_rew_mean  | 0.", 1),
        (9, "| a | table | of | others |\n", 0),
        (9, "| train | it |\n|---|---|\n", 0),
    ],
)
def test_a_block_of_stable_baselines_that_is_cut(tmp_path, num_lines, end, num):
    text = "".join("".join(block(step)) for step in range(1, 6))
    last = "".join(block(6)[:num_lines]) + end
    assert counted(tmp_path / "a.log", text + last)[1] == num


def test_rows_of_a_block_that_were_joined(tmp_path):
    lines = block(4)
    lines[2:4] = ["|    ep_len_mean  |    ep_rew_mean  | 0.4     |\n"]
    text = "".join("".join(block(step)) for step in range(1, 4)) + "".join(lines)
    assert counted(tmp_path / "a.log", text + "".join(block(5))) == (5, 1)


@pytest.mark.parametrize(
    ("line", "num_rows", "num"),
    [
        ("10:00:01 step=4 reward=0.5 k10:00:02 step=5 reward=0.5 kl=0.1\n", 3, 1),
        ("10:00:01 step=4 rew10:00:02 step=5 reward=0.5 kl=0.1\n", 3, 1),
        ("step=4 reward=0.5 kl=0.1 (the best was reward=0.7 at step=3)\n", 4, 0),
        ("step=4 reward=0.5 kl=0.1 (step=4 of 9)\n", 4, 0),
        ("step=4 train reward=0.5 val reward=0.5 kl=0.1\n", 4, 0),
    ],
)
def test_lines_of_pairs_that_were_joined(tmp_path, line, num_rows, num):
    text = LINE(1) + LINE(2) + LINE(3) + line
    assert counted(tmp_path / "a.log", text) == (num_rows, num)
