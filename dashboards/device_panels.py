"""Panels about devices: their use in each stage, and their memory as the driver reports it."""

from __future__ import annotations

from typing import Any

from dashboards.common import (
    BLUE,
    ORANGE,
    RED,
    TEAL,
    YELLOW,
    as_table,
    background,
    bars,
    by_threshold,
    cells,
    fixed,
    instant,
    limits,
    lines,
    prop,
    query,
    tiles,
    transform,
)
from dashboards.promql import by, followed_by_agents, lately, of_agents, of_ranks, recent
from dfx_agent.catalogue import devices, host, memory
from dfx_agent.catalogue.spec import Metric

NO_DEVICE = "no device"


def _best(first: Metric, second: Metric, labels: str, aggregation: str) -> str:
    """SM activity where it is measured, else utilisation."""
    preferred = by(labels, aggregation, recent(of_ranks(first)))
    return f"{preferred} or {by(labels, aggregation, recent(of_ranks(second)))}"


def stage_matrix() -> Any:
    panel = cells(
        "Devices busy: rank × stage",
        "SM activity in each stage, mean of 15 minutes. If the device does not report SM activity, "
        "utilisation, which is higher. A stage that computes is above 40 %. A low column is a "
        "stage that waits for something else; one low cell is a rank with less work, or a "
        "throttled device.",
        "percentunit",
    )
    text = _best(devices.STAGE_SM_ACTIVE, devices.STAGE_UTILIZATION, "rank, stage", "avg")
    panel.with_target(as_table(instant(text))).decimals(0).no_value(NO_DEVICE)
    steps = limits(RED, (0.1, ORANGE), (0.3, YELLOW), (0.5, TEAL))
    panel.color_scheme(by_threshold()).thresholds(steps)
    panel.override_by_regexp("^(?!rank).*", [background()])
    panel.override_by_name("rank\\stage", [prop("unit", "string")])  # else rank 1 is 100 %
    return panel.transformations(
        [transform("groupingToMatrix", columnField="stage", rowField="rank", valueField="Value")]
    )


def stage_bars() -> Any:
    panel = bars(
        "Devices busy by stage",
        "The same over all ranks. If rollout is low and the engines have requests, the time is "
        "spent outside the device: tokenizer, network, Python.",
        "percentunit",
    )
    text = _best(devices.STAGE_SM_ACTIVE, devices.STAGE_UTILIZATION, "stage", "avg")
    panel.with_target(instant(text, "{{stage}}")).no_value(NO_DEVICE).min(0).max(1)
    steps = limits(RED, (0.1, ORANGE), (0.3, YELLOW), (0.5, TEAL))
    return panel.color_scheme(by_threshold()).thresholds(steps)


def held_down() -> Any:
    panel = tiles(
        "Devices held down",
        "Devices with throttled clocks in the window, by reason. 'power cap' all over is how "
        "the machine is set up. One device alone makes a straggler: look at its power and cooling.",
        "none",
    )
    text = by("reason", "count", followed_by_agents(lately(devices.THROTTLED.sample_name)))
    panel.with_target(instant(text, "{{reason}}")).no_value("none")
    return panel.color_scheme(by_threshold()).thresholds(limits(YELLOW))


def driver_memory() -> Any:
    panel = lines(
        "In use on each device, by its driver",
        "Share of the device's memory, all users together: allocator, contexts, communication "
        "buffers and engines. Emptying the allocators' caches does not free the other parts.",
        "percentunit",
    )
    used, total = (
        by("device", "max", of_agents(metric))
        for metric in (devices.MEMORY_USED, memory.DEVICE_TOTAL)
    )
    return (
        panel.with_target(query(f"{used} / {total}", "{{device}}"))
        .min(0)
        .max(1)
        .no_value(NO_DEVICE)
    )


def stage_memory() -> Any:
    panel = bars(
        "Device memory in use by stage",
        "Mean of 15 minutes, of the rank with most. Rollout and update should not both be high: "
        "memory that sleep or offload did not release is missing in the other.",
        "bytes",
    )
    text = by("stage", "max", recent(of_ranks(devices.STAGE_MEMORY)))
    panel.with_target(instant(text, "{{stage}}")).no_value(NO_DEVICE).min(0)
    return panel.color_scheme(fixed(BLUE))


def shared_memory() -> Any:
    panel = lines(
        "Shared memory of each machine",
        "Used of /dev/shm, which data loaders, NCCL and the guests write into. Full ends jobs with "
        "a bus error: enlarge it (--shm-size of the container).",
        "percentunit",
    )
    used, total = (
        by("instance", "max", of_agents(metric)) for metric in (host.SHM_USED, host.SHM_TOTAL)
    )
    return panel.with_target(query(f"{used} / {total}", "{{instance}}")).min(0).max(1)
