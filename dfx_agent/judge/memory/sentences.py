"""Sentences about memory that runs out."""

from dfx_agent.base.text import Sentence

HOST_LEAK = Sentence(
    "{ranks} {have} grown by {amount} per step since step {since}. {limit} is used up in about "
    "{steps} steps ({time}).",
    {
        "ranks": "Rank 0", "have": "has", "amount": "4 MiB", "since": 20,
        "limit": "The host's memory", "steps": 900, "time": "15 min",
    },
)  # fmt: skip
HOST_GROWTH_FAR = Sentence(
    "{ranks} {have} grown by {amount} per step since step {since}. {limit} lasts for about "
    "{steps} more steps ({time}).",
    {
        "ranks": "Rank 0", "have": "has", "amount": "0.5 MiB", "since": 20,
        "limit": "The host's memory", "steps": 43000, "time": "12 h",
    },
)  # fmt: skip
LIMIT_UNKNOWN = Sentence(
    "{ranks} {have} grown by {amount} per step since step {since}. The memory limit is not known.",
    {"ranks": "Rank 0", "have": "has", "amount": "4 MiB", "since": 20},
)
NOTHING_GROWS = Sentence("No process grows steadily.")
DEVICE_LEAK = Sentence(
    "{ranks} {have} allocated {amount} more of {device} per step since step {since}. The device is "
    "full in at most {steps} steps ({time}).",
    {
        "ranks": "Rank 0", "have": "has", "amount": "20 MiB", "since": 20, "device": "cuda:0",
        "steps": 210, "time": "3 min",
    },
    action="Look for tensors that outlive their step: losses or metrics stored with their graph, "
    "lists that only grow, caches without an end.",
)  # fmt: skip
DEVICE_NEARLY_FULL = Sentence(
    "The allocator of {ranks} holds {share} of {device}, and the part in pieces that are too small "
    "to use grows. Out of memory is near.",
    {"ranks": "rank 0", "share": "95 %", "device": "cuda:0"},
)
NOT_RELEASED = Sentence(
    "{ranks} {hold} {amount} of {device} while offloaded and {use} none of it: offloading did not "
    "release it.",
    {"ranks": "Rank 0", "hold": "holds", "amount": "8 GiB", "device": "cuda:0", "use": "uses"},
    action="Call torch.cuda.empty_cache() after offloading.",
)
