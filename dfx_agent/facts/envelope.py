"""Names that nodes and hub use to transport a document of facts.

The document is the body of an OTLP log record. Attributes of the record identify the sender.
Headers of the hub's answer contain its requests.
"""

from __future__ import annotations

LOGS_PATH = "/v1/logs"
TRACES_PATH = "/v1/traces"  # spans of the job itself

# attributes of a record
RUN, NODE, AGENT, URL = "dfx.run", "dfx.node", "dfx.agent", "dfx.url"
IS_LAST = "dfx.is_last"

# header of a request: the sender, if the body cannot be read
NODE_HEADER = "dfx-node"
# headers of the answer: the id of this start of the hub, whether it needs full facts, how often it
# wants facts, whether it delivers alerts, and its names of runs if they differ from the node's
HUB_ID, WANTS_ALL, EVERY_SECONDS = "dfx-hub", "dfx-wants-all", "dfx-every-seconds"
DELIVERS, CALLED = "dfx-delivers", "dfx-called"

# how often a node sends facts unless the hub asks for another interval: most of the cost is per
# request
SEND_SECONDS = 2.0
# the longest interval, if no step closed, no process started or ended, and no rank is blocked
QUIET_SECONDS = 4.0
