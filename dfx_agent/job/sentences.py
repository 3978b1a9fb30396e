"""Sentences about nodes that are missing, lost or have not started."""

from __future__ import annotations

from dfx_agent.base.text import Sentence

NODE_LOST = Sentence(
    "Node {node} is lost with {ranks}: "
    "no report for {seconds}, and its host does not answer.{wait}",
    {"node": "node-b", "ranks": "ranks 2, 3", "seconds": "19 s", "wait": " Rank 0 waits for it."},
    action="Check node {node} and its network. If it does not return, restart the job from the "
    "latest checkpoint without it.",
)

_NODE = {"node": "node-b", "ranks": "ranks 2, 3", "duration": "40 s"}

AGENT_ENDED = Sentence(
    "The agent of {node} has ended: {state}.",
    {"node": "node-b", "state": "whether ranks 2, 3 run is not known"},
)
AGENT_SILENT = Sentence(
    "The agent of {node} has sent nothing for {duration}: {state}.",
    {"node": "node-b", "duration": "20 s", "state": "ranks 2, 3 still take part in collectives"},
)
NODE_CUT_OFF = Sentence(
    "This hub has had no connection to {node} for {duration}; {ranks} still take part in "
    "collectives.",
    _NODE,
    action="Check the network between the hub and this node. The job itself continues.",
)
NODE_GONE = Sentence(
    "{node} has been gone, or without network, for {duration}: "
    "neither its host nor {ranks} respond.",
    {**_NODE, "node": "Node node-b"},
)
RANKS_MISSING = Sentence(
    "{num_here} of {num_ranks} ranks have started; {missing}.",
    {"num_here": 6, "num_ranks": 8, "missing": "none of node-c"},
)
IN_RENDEZVOUS = Sentence(
    "The ranks have waited in rendezvous for {duration}. {missing}",
    {"duration": "55 s", "missing": "6 of 8 ranks have started; none of node-c."},
)
NOT_BEGUN = Sentence(
    "The job has not begun for {duration}. {missing}",
    {"duration": "55 s", "missing": "6 of 8 ranks have started; ranks 6, 7 never joined."},
)
TORCHRUN_WAITS = Sentence(
    "The torchrun launcher has waited for other nodes for {duration}: "
    "{num_here} of {num_nodes} started{missing}.",
    {"duration": "55 s", "num_here": 1, "num_nodes": 2, "missing": ", node rank 1 did not"},
)
NO_RANKS_YET = Sentence(
    "The torchrun launcher runs on {nodes}, and no rank has appeared for {duration}.",
    {"nodes": "node-a, node-b", "duration": "55 s"},
)
