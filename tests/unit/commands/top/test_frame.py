"""Frames of `top` as text: what is wrong, whose fault and what to do, in every size."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from scripted_source import ScriptedSource

from dfx_agent.commands.top.frame import Size, frame, rank_keys
from dfx_agent.commands.top.view import Choice, Curve, Shown, pressed
from dfx_agent.snapshot import Incident, RunRow, RunVerdicts, Snapshot, Standing, Suspicion, Verdict

NOW = 1.8e9
SIZES = [(80, 24), (200, 60)]
PLAIN = Choice()


def incident(kind: str, summary: str, *, severity="critical", rank="2", lost=None, action="Act."):
    state = "found" if severity == "critical" else severity
    sentence = f"{summary} It began at step 9. {action}"
    return Incident(
        f"{kind}-1", kind, state, severity, "trainer", (rank,), "rollout", "", NOW - 2460, 9, lost,
        summary, "", action, sentence, (), ("evidence one", "evidence two"),
    )  # fmt: skip


@cache
def scripted(num_ranks: int) -> Snapshot:
    return ScriptedSource(num_ranks, clock=lambda: NOW, num_past_steps=3).snapshot()


def run_of(num_ranks: int = 4, **changes: object) -> RunRow:
    row = scripted(num_ranks).runs[0]
    ranks = tuple(replace(rank, role="trainer") for rank in row.ranks)
    clear = Standing("clear", "No problem found. Checked: hang, crash.")
    return replace(row, ranks=ranks, standing=clear, verdicts=(), incidents=(), **changes)


def shown(*runs: RunRow, finished: tuple[RunVerdicts, ...] = (), **changes: object) -> Shown:
    return Shown(
        Snapshot(NOW, scripted(1).agent, runs, finished), NOW, "http://a", "in /dfx", **changes
    )


def text_of(data: Shown, width=80, height=24, choice=PLAIN, *, is_live=True) -> list[str]:
    size = Size(width, height, has_color=False, is_live=is_live)
    lines = [line.plain for line in frame(data, choice, size)]
    assert len(lines) <= height
    assert max(map(len, lines)) <= width, max(lines, key=len)
    return lines


FOUND = {
    "hang": (incident("hang", "Rank 2 is stuck in rollout. Rank 0 waits."), "is stuck in rollout"),
    "straggler": (incident("straggler", "Rank 2 is slow.", lost=0.3), "Rank 2 is slow"),
    "divergence": (incident("divergence", "KL rose, reward fell.", rank="0"), "KL rose"),
    "memory": (incident("memory", "Rank 2 runs out of memory in 26 min."), "in 26 min"),
}


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("num_ranks", [1, 4, 64, 1024])
@pytest.mark.parametrize("kind", FOUND)
def test_who_since_when_and_what_to_do_are_the_first_lines(kind, num_ranks, width, height):
    found, says = FOUND[kind]
    data = shown(replace(run_of(num_ranks), incidents=(found,)))
    head, title, detail, action, *_ = text_of(data, width, height)
    assert "gsm8k-grpo" in head
    assert title.startswith("✕ ")
    assert says in title
    assert detail.startswith("  since step 9, 41 min")
    assert action == "  Do: Act."


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_the_blamed_rank_is_the_first_row_and_the_rest_of_1024_is_one_line(width, height):
    found, _ = FOUND["straggler"]
    data = shown(replace(run_of(1024), incidents=(replace(found, ranks=("777",)),)))
    lines = text_of(data, width, height)
    at = next(n for n, line in enumerate(lines) if line.startswith("RANK"))
    assert lines[at + 1].startswith("✕ 777 ")
    (rest,) = (line for line in lines if " more ranks: " in line)
    num_rows = lines.index(rest) - at - 1
    assert rest.startswith(f"  and {1024 - num_rows:,} more ranks: {1024 - num_rows:,} live")
    assert num_rows > height / 2


def test_the_cost_is_said_as_a_share_of_the_step_and_in_hours():
    found, _ = FOUND["straggler"]
    row = run_of(4)
    wall = sum(rank.last.wall_seconds for rank in row.ranks) / 4
    data = shown(replace(row, incidents=(replace(found, lost_seconds=wall / 4),)))
    detail = text_of(data)[2]
    assert "of each step (25 %)" in detail
    assert "0.68 GPU-hours so far" in detail


def test_without_a_problem_the_first_line_says_so_and_where_a_step_goes():
    lines = text_of(shown(run_of()))
    assert lines[1] == "✓ No problem found"
    unsure = Standing("insufficient evidence", "Too early to judge.")
    lines = text_of(shown(replace(run_of(), standing=unsure)))
    assert lines[1:3] == ["· Not everything can be judged", "  Too early to judge."]


def test_a_suspicion_shows_how_long_until_it_is_certain():
    verdict = Verdict(
        "hang", "insufficient evidence", "trainer", "Rank 1 has not moved.",
        suspicion=Suspicion(("1",), NOW - 64, 300.0),
    )  # fmt: skip
    lines = text_of(shown(replace(run_of(), verdicts=(verdict,))))
    assert lines[1:3] == ["? Rank 1 has not moved", "  64 s of 300 s until it is certain"]


def test_no_run_says_how_to_start_one():
    lines = text_of(shown())
    assert lines[0] == "No observed process in /dfx."
    assert "dfx-agent run -- CMD" in lines[1]


def test_an_ended_run_is_never_green_after_an_incident():
    past = replace(FOUND["hang"][0], end_seconds=NOW, is_until_run_end=True)
    ended = tuple(replace(rank, state="exited", step=None) for rank in run_of().ranks)
    row = replace(run_of(), ranks=ended, past_incidents=(past,), ending="The run ended at 3.")
    lines = text_of(shown(row))
    assert lines[1] == "✕ Rank 2 is stuck in rollout"
    assert "until the run ended" in lines[2]
    assert "· The run ended at 3." in lines
    assert " · step 2 · " in lines[0]
    standing = Standing("found", past.sentence)
    lines = text_of(shown(finished=(RunVerdicts("old", standing, (), (), (past,)),)))
    assert lines[:2] == ["run old, which has ended:", "✕ Rank 2 is stuck in rollout"]
    assert "  Do: Act." in lines


def test_an_agent_that_is_gone_is_said_above_its_last_state():
    lines = text_of(shown(run_of(), problem="No answer since 10:00:00: refused."))
    assert lines[1] == "✕ No answer since 10:00:00: refused."


def test_a_bar_has_letters_without_colour_and_blocks_with_it():
    data = shown(run_of())
    plain = "\n".join(text_of(data))
    assert "RRRR" in plain
    assert "█" not in plain.partition("reward")[0]
    colored = frame(data, PLAIN, Size(80, 24, has_color=True))
    assert any("████" in line.plain for line in colored)
    styles = {str(span.style) for line in frame(data, PLAIN, Size(80, 24, has_color=False))
              for span in line.spans}  # fmt: skip
    assert not any("#" in style for style in styles)


def test_curves_have_their_latest_value_and_nan_is_visible():
    curves = {"gsm8k-grpo": (
        Curve("reward", (0.1, 0.5, None)), Curve("KL", (1.0, float("nan"), 2.0)),
        Curve("memory", (2.0**30,), "bytes"),
    )}  # fmt: skip
    line = next(line for line in text_of(shown(run_of(), curves=curves)) if "memory" in line)
    assert "reward ▁█  0.5" in line
    assert "KL ▁!█ 2" in line
    assert "memory ▄ 1 GiB" in line


def test_keys_sort_filter_select_and_open_a_rank():
    data = shown(run_of(64))

    def after(*keys: str) -> Choice:
        choice = PLAIN
        for key in keys:
            choice = pressed(choice, key, rank_keys(data, choice), ["gsm8k-grpo"])
        return choice

    assert [key[1] for key in rank_keys(data, after("s"))] == [str(n) for n in range(64)]
    assert [key[1] for key in rank_keys(data, after("/", "1", "7", "enter"))] == ["17"]
    assert rank_keys(data, after("/", "z", "z", "enter")) == []
    assert rank_keys(data, after("/", "z", "z", "escape")) == rank_keys(data, PLAIN)
    opened = after("s", "down", "down", "down", "enter")
    assert opened.selected == ("trainer", "2")
    lines = text_of(data, 80, 24, opened)
    assert any(line.startswith("trainer 2 · live · step") for line in lines)
    assert any(line.startswith("last step, ") for line in lines)
    assert text_of(data, 80, 24, after("?"))[4].startswith("q, Ctrl-C")


def test_the_selected_rank_of_many_stays_on_the_screen():
    data = shown(run_of(1024))
    lines = text_of(data, 80, 24, Choice(sort="rank", selected=("trainer", "900")))
    assert any(line.startswith(" >900 ") for line in lines)


@pytest.mark.parametrize(("width", "height"), [(40, 10), (39, 24), (120, 9), (41, 12)])
def test_a_tiny_terminal_gets_a_frame_or_a_sentence(width, height):
    lines = text_of(shown(replace(run_of(64), incidents=(FOUND["hang"][0],))), width, height)
    assert lines


def test_one_frame_has_no_keys_and_no_empty_lines_at_its_end():
    lines = text_of(shown(run_of()), is_live=False)
    assert lines[-1].strip()
    assert not any("q quit" in line for line in lines)
