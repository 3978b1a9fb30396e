"""Durations as people read them."""


def seconds_text(seconds: float) -> str:
    """As in "0.035 s", "14.2 s", "140 s"."""
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"


def age_text(seconds: float) -> str:
    """As in "14 s", "14 min", "3.2 h"."""
    if seconds < 120:
        return f"{max(0.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
