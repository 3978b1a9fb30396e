"""Sizes and limits that the processes of the pipeline share."""

from __future__ import annotations

from dfx_agent.commands.demo import task

MAX_RESPONSE_LENGTH = 24
# tokens of one request: a longer response continues with the next weight version
TOKEN_BUDGET = 8
CONTEXT_LENGTH = task.PROMPT_WIDTH + MAX_RESPONSE_LENGTH
GROUP_SIZE = 8
GROUPS_PER_BATCH = 4
MAX_GROUPS_IN_FLIGHT = 8
QUEUE_CAPACITY = GROUPS_PER_BATCH
# timeout of a request or a weight transfer
REQUEST_TIMEOUT_SECONDS = 30.0
