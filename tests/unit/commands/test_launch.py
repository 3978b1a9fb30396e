"""Where the nodes of a job meet."""

import socket

import pytest

from dfx_agent.commands.run.launch import Rendezvous, launch_of, rendezvous_of

TORCHRUN = ["torchrun", "--nnodes", "2"]


@pytest.mark.parametrize(
    ("words", "environ", "rendezvous"),
    [
        (["--master-addr", "a", "--node-rank", "0"], {}, Rendezvous("a", is_here=True)),
        (["--master_addr=a", "--node_rank=1"], {}, Rendezvous("a", is_here=False)),
        (["--rdzv-endpoint", "a:29500", "--node-rank=1"], {}, Rendezvous("a", is_here=False)),
        (
            ["--rdzv_endpoint=[fe80::1]:29500", "--node-rank=0"],
            {},
            Rendezvous("fe80::1", is_here=True),
        ),
        ([], {"MASTER_ADDR": "a", "NODE_RANK": "0"}, Rendezvous("a", is_here=True)),
        ([], {"MASTER_ADDR": "a", "GROUP_RANK": "3"}, Rendezvous("a", is_here=False)),
        (
            ["--master-addr", "b"],
            {"MASTER_ADDR": "a", "NODE_RANK": "1"},
            Rendezvous("b", is_here=False),
        ),
        (
            [],
            {"SLURM_JOB_NODELIST": "gpu[004-007,12],x1", "SLURM_NODEID": "0"},
            Rendezvous("gpu004", is_here=True),
        ),
        ([], {"SLURM_JOB_NODELIST": "n1,n2", "SLURM_NODEID": "1"}, Rendezvous("n1", is_here=False)),
        (
            ["--rdzv-endpoint", "b:1"],
            {"SLURM_JOB_NODELIST": "a1,a2", "SLURM_NODEID": "1"},
            Rendezvous("b", is_here=False),
        ),
        ([], {"RAY_ADDRESS": "ray://h:10001", "NODE_RANK": "1"}, Rendezvous("h", is_here=False)),
        ([], {"RAY_ADDRESS": "auto"}, None),
        (["--standalone"], {}, None),
    ],
)
def test_what_launchers_and_schedulers_say(words, environ, rendezvous):
    assert rendezvous_of([*TORCHRUN, *words, "train.py"], environ) == rendezvous


def test_without_a_node_rank_it_is_here_where_the_address_is_ours():
    assert rendezvous_of([], {"MASTER_ADDR": "127.0.0.1"}) == Rendezvous("127.0.0.1", is_here=True)
    assert rendezvous_of([], {"MASTER_ADDR": "localhost", "NODE_RANK": "1"}).is_here
    own = socket.gethostname()
    # TEST-NET-1 of RFC 5737 is nobody's
    assert not rendezvous_of([], {"MASTER_ADDR": "192.0.2.1"}).is_here
    assert rendezvous_of([], {"MASTER_ADDR": "no such host"}) == Rendezvous(
        "no such host", is_here=False
    )
    assert rendezvous_of([], {"MASTER_ADDR": own}) is not None


@pytest.mark.parametrize(
    ("command", "known"),
    [
        ("torchrun --nnodes 2 --node-rank 1 --master-addr a t.py", (2, 1, "a")),
        ("python -m torch.distributed.run --nnodes=2:4 --rdzv-endpoint=a:1 t.py", (2, -1, "a:1")),
        ("/opt/bin/torchrun --nnodes=1 t.py", None),
        ("torchrun --standalone t.py", None),
        ("python t.py --nnodes 2", None),
        ("torchrun --nnodes x t.py", None),
        (f"torchrun --nnodes {2**31 - 1} t.py", (2**31 - 1, -1, "")),
        (f"torchrun --nnodes {2**31} t.py", None),
        (f"torchrun --nnodes {'9' * 5000} t.py", None),
        (f"torchrun --nnodes 2 --node-rank {'9' * 5000} t.py", (2, -1, "")),
    ],
)
def test_torchrun_on_several_nodes_meets_them_first(command, known):
    found = launch_of(command.split(), {}, "r")
    assert (found and (found.num_nodes, found.node_rank, found.meets_at)) == known
