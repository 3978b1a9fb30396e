"""Decides which processes with one run name are one job: they share a rendezvous address."""

from __future__ import annotations

from collections.abc import Iterable

from dfx_agent.facts.seat import Seat


def is_other_job(reported: Iterable[Seat], members: Iterable[Seat]) -> bool:
    """Whether ranks of one role and attempt use other rendezvous addresses than ``members``."""
    member_addresses = _addresses(members)
    return any(
        addresses.isdisjoint(member_addresses[key])
        for key, addresses in _addresses(reported).items()
        if key in member_addresses
    )


def rendezvous_of(seats: Iterable[Seat]) -> str:
    """The rendezvous address of these processes; "" if it is unknown."""
    return next((seat.rendezvous.partition("@")[0] for seat in seats if seat.rendezvous), "")


def _addresses(seats: Iterable[Seat]) -> dict[tuple[str, int], set[str]]:
    """(role, attempt) -> rendezvous addresses of its ranks."""
    found: dict[tuple[str, int], set[str]] = {}
    for seat in seats:
        if seat.rendezvous:
            found.setdefault((seat.role, seat.attempt), set()).add(seat.rendezvous)
    return found
