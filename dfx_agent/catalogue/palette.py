"""Colours of stages, waits and ratios, as on the page: colour-blind people can tell them apart."""

STAGE_COLORS = {
    "rollout": "#597cdf",
    "reward": "#dbc81c",
    "old_logprob": "#378f90",
    "ref_logprob": "#86e6d5",
    "values": "#a1ae03",
    "advantage": "#b798c1",
    "actor_update": "#d26742",
    "forward": "#ebcb91",
    "backward": "#c1470d",
    "optimizer": "#995670",
    "communication": "#aea17e",
    "critic_update": "#9549a8",
    "weight_sync": "#58d2fc",
    "offload": "#99a1fe",
    "validation": "#cf608e",
    "checkpoint": "#c6b2a2",
}
WAIT_COLOR, IDLE_COLOR = "#dca443", "#5b6472"
LESS, MIDDLE, MORE = (31, 111, 184), (221, 225, 231), (198, 90, 0)  # RGB, below to above a median

_ORDER = list(STAGE_COLORS)
_OTHER_STAGES = ("#7f9cc0", "#a9a06b", "#b27f95", "#6fa58c")


def stage_color(name: str) -> str:
    """A stage that is not canonical has a constant colour, computed from its name."""
    return STAGE_COLORS.get(name) or _OTHER_STAGES[sum(name.encode()) % len(_OTHER_STAGES)]


def stage_order(name: str) -> tuple[int, str]:
    """Key that sorts canonical stages in the order of a step, others after them."""
    return (_ORDER.index(name) if name in STAGE_COLORS else len(_ORDER), name)
