"""What travels around a document of facts from node to hub: names that both ends know.

A document is the body of an OTLP log record. Its attributes say whose it is; headers of the hub's
answer say what it wishes.
"""

from __future__ import annotations

LOGS_PATH = "/v1/logs"
TRACES_PATH = "/v1/traces"  # spans of a job itself

# attributes of a record
RUN, NODE, AGENT, URL = "dfx.run", "dfx.node", "dfx.agent", "dfx.url"
IS_LAST = "dfx.is_last"

# of a request: who sends it, where its body cannot be read
NODE_HEADER = "dfx-node"
# of the answer: which start of the hub it is, whether it lacks something, how often it wishes
# to be told, whether it delivers alerts, and what it calls runs that the node calls otherwise
HUB_ID, WANTS_ALL, EVERY_SECONDS = "dfx-hub", "dfx-wants-all", "dfx-every-seconds"
DELIVERS, CALLED = "dfx-delivers", "dfx-called"

# how often a node tells something while no hub asks for another pace: most of the cost of telling
# is that of each time
TELL_SECONDS = 2.0
# so often at least, where no step was closed, nobody came or went, and nobody stands
QUIET_SECONDS = 4.0
