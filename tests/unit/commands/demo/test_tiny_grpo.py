import pytest

from dfx_agent.commands.demo import tiny_grpo


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "0"], "argument --steps: must be at least 1, not 0; see --help"),
        (["--steps", "many"], "invalid whole number value: 'many'"),
        (["--group-size", "3"], "must be at least 4, not 3"),
        (["--learning-rate", "-1"], "argument --learning-rate: must be above 0, not -1"),
        (["--learning-rate", "inf"], "must be above 0, not inf"),
        (["--fold"], "unrecognized arguments: --fold"),
        (["--fault", "foo"], "--fault foo: no such fault; choose from straggler:RANK:FACTOR"),
        (["--fault", "crash:1"], "there is no rank 1 in a run of 1"),
        (["--fault", "nan", "--fault", "tokens_imbalance"], "needs at least 2 ranks"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(arguments, message, capsys, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)

    with pytest.raises(SystemExit) as caught:
        tiny_grpo.main(arguments)

    error = capsys.readouterr().err
    assert caught.value.code == 2
    assert error.startswith("tiny_grpo: ")
    assert message in error
    assert error.count("\n") == 1


def test_of_many_ranks_one_tells_the_mistake(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")

    with pytest.raises(SystemExit) as caught:
        tiny_grpo.main(["--fault", "foo"])

    assert caught.value.code == 2
    assert capsys.readouterr().err == ""


def test_help_names_every_fault(capsys):
    with pytest.raises(SystemExit) as caught:
        tiny_grpo.main(["--help"])

    shown = " ".join(capsys.readouterr().out.split())
    assert caught.value.code == 0
    assert all(usage in shown for usage in tiny_grpo.GRAMMAR.values())
    assert "torchrun --nproc-per-node 4" in shown
