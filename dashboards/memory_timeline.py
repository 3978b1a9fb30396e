"""Memory timeline: how close to the limit, what grows, and in which stage."""

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.models import common as cm

from dashboards import alert_panels, device_panels
from dashboards.common import (
    BLUE,
    GREY,
    ORANGE,
    RED,
    TEAL,
    YELLOW,
    Board,
    bars,
    by_threshold,
    colored,
    dashed,
    fixed,
    instant,
    limits,
    lines,
    query,
    rank_heatmap,
    tiles,
    values,
)
from dashboards.e2e_timeline import STAGES, paint
from dashboards.promql import SCRAPES, by, of_ranks, of_role, of_run, recent
from dfx_agent.catalogue import memory, performance
from dfx_agent.catalogue.engines import KV_CACHE_PEAK, PREFIX
from dfx_agent.catalogue.spec import Metric, by_name

DEVICE = "role, rank, device"
NO_DEVICE = "no device"
NEVER = 1e9  # steps: what stands for "does not grow"


def board() -> Board:
    made = Board(
        "dfx-memory", "dfx: Memory timeline", file="dashboards/memory_timeline.py",
        about="How close devices and hosts are to their limits, what grows, and in which stage.",
    )  # fmt: skip
    made.with_role().with_ranks().with_window().with_links()
    alert_panels.annotate(made)
    made.row("Verdict: will memory run out, and where?")
    made.line(
        5, (6, host_verdict()), (7, alert_panels.alerts("dfx-memory")), (4, device_verdict()),
        (4, steps_to_limit()), (3, out_of_memory()),
    )  # fmt: skip
    made.row("Memory over time: host and devices")
    made.line(9, (12, host_memory()), (12, allocator()))
    made.line(8, (12, host_growth()), (12, stage_peaks()))
    made.folded("Host: each rank")
    made.line(8, (16, host_heatmap()), (8, host_slopes()))
    made.folded("Devices: each rank, fragmentation, retries")
    made.line(9, (16, reserved_heatmap()), (8, fullest()))
    made.line(8, (8, fragmentation()), (8, gap()), (8, retries()))
    made.folded("Stages: what offloading gives back, and who was refused")
    made.line(
        8, (8, held()), (6, host_by_stage()), (4, refused_by_stage()), (3, kv_cache()),
        (3, communication()),
    )  # fmt: skip
    made.folded("Devices and host, by their own account")
    made.line(
        8, (9, device_panels.driver_memory()), (7, device_panels.stage_memory()),
        (8, device_panels.shared_memory()),
    )  # fmt: skip
    made.folded("More: KV cache, activations and communication over time")
    made.line(
        8, (8, kv_cache_lines()), (8, activations()), (8, communication_lines()),
    )  # fmt: skip
    made.folded("More: host memory retained by the C library")
    made.line(8, (24, heap()))
    return made


def of_devices(metric: Metric) -> str:
    return by(DEVICE, "max", recent(of_ranks(metric)))


def host_verdict() -> Any:
    slope = by("rank", "max", recent(of_ranks(memory.HOST_SLOPE)))
    panel = tiles(
        "Host memory grows, per step",
        "Median growth of anonymous memory per step, over 64 steps: the fastest rank, and the "
        "median rank. Below 0.5 MiB is normal after warm-up. Both above: a leak in code that all "
        "ranks run (lists of tensors, data loader workers, logs in memory). Only the fastest rank "
        "above: its data or its role.",
        "bytes",
    )
    panel.with_target(instant(f"topk(1, {slope})", "rank {{rank}}"))
    panel.with_target(instant(f"quantile(0.5, {slope})", "median rank", "B"))
    steps = limits(TEAL, (512 * 1024, YELLOW), (2 * 1024 * 1024, RED))
    return panel.color_scheme(by_threshold()).thresholds(steps).no_value("too few steps yet")


def device_verdict() -> Any:
    panel = tiles(
        "Fullest device",
        "Reserved by the allocator, of what the device has. Above 92 % the next long batch may "
        "fail. Says 'no device' where ranks use none.",
        "percentunit",
    )
    share = f"max({of_devices(memory.GPU_RESERVED)} / {of_devices(memory.GPU_LIMIT)})"
    panel.with_target(instant(f"{share} or {absent(memory.GPU_LIMIT)}", "reserved"))
    panel.text_mode(cm.BigValueTextMode.VALUE).mappings([values(("-1", NO_DEVICE, GREY))])
    steps = limits(GREY, (0, TEAL), (0.85, YELLOW), (0.92, RED))
    return panel.color_scheme(by_threshold()).thresholds(steps).decimals(0)


def absent(metric: Metric) -> str:
    """-1 while there are ranks and none has the metric: mapped to words."""
    ranks = f"count({recent(of_ranks(memory.HOST_ANONYMOUS))})"
    return f"((0 * {ranks} - 1) unless on () {of_devices(metric)})"


def fullest() -> Any:
    panel = bars(
        "Fullest devices",
        "Reserved, of the device's limit. Devices alike are normal; one that stands out holds "
        "something the others do not.",
        "percentunit",
    )
    share = f"{of_devices(memory.GPU_RESERVED)} / {of_devices(memory.GPU_LIMIT)}"
    panel.with_target(instant(f"topk(4, {share})", "rank {{rank}} {{device}}")).no_value(NO_DEVICE)
    steps = limits(TEAL, (0.85, YELLOW), (0.92, RED))
    return panel.min(0).max(1).color_scheme(by_threshold()).thresholds(steps)


def steps_to_limit() -> Any:
    growth = by(DEVICE, "max", f"deriv({of_ranks(memory.GPU_RESERVED)}[10m])")
    step = by("role", "max", recent(of_ranks(performance.RANK_STEP_SECONDS)))
    peak, reserved = of_devices(memory.GPU_STAGE_PEAK), of_devices(memory.GPU_RESERVED)
    room = f"({of_devices(memory.GPU_LIMIT)} - ({peak} > {reserved} or {reserved}))"
    left = f"min({room} / on ({DEVICE}) (({growth} > 1e3) * on (role) group_left () {step}))"
    panel = tiles(
        "Steps until a device is full",
        "If reserved memory grows as in the last 10 minutes, from its highest value or the highest "
        "peak of a stage. 'does not grow' is normal. Below 500: find below the stage with the "
        "growing peak before the job runs out of memory.",
        "none",
    )
    still = f"(0 * max({of_devices(memory.GPU_RESERVED)}) + {NEVER:.0f})"
    text = f"{left} or {still} or {absent(memory.GPU_LIMIT)}"
    panel.with_target(instant(text, "steps")).text_mode(cm.BigValueTextMode.VALUE).decimals(0)
    words = values((f"{NEVER:.0f}", "does not grow", TEAL), ("-1", NO_DEVICE, GREY))
    steps = limits(GREY, (0, RED), (500, YELLOW), (5000, TEAL))
    return panel.mappings([words]).color_scheme(by_threshold()).thresholds(steps)


def out_of_memory() -> Any:
    panel = tiles(
        "Out-of-memory errors",
        "Since the processes began, as on the agent's page, all ranks, caught ones included. 0 is "
        "normal; caught ones cost seconds each: shorten the longest batch.",
        "none",
    )
    # not increase(): what a counter had when it was first scraped is no growth, 1 OOM would be 0
    text = f"sum({of_ranks(memory.GPU_OOMS)}) or {absent(memory.GPU_LIMIT)}"
    panel.with_target(instant(text, "errors")).text_mode(cm.BigValueTextMode.VALUE)
    panel.mappings([values(("-1", NO_DEVICE, GREY))]).color_scheme(by_threshold())
    return panel.thresholds(limits(GREY, (0, TEAL), (1, RED)))


def host_memory() -> Any:
    panel = lines(
        "Anonymous memory of each rank",
        "Of the 16 ranks with most. Rises in the first steps and then stays flat: normal. A "
        "straight line upwards is a leak.",
        "bytes",
    )
    held = by("rank", "max", of_ranks(memory.HOST_ANONYMOUS))
    return panel.with_target(query(f"topk(16, {held})", "rank {{rank}}"))


def host_growth() -> Any:
    panel = lines(
        "Growth per step",
        "Median growth over the latest 64 steps, of the 16 ranks that grow fastest. Around 0 is "
        "normal. All ranks above 0: the code; one rank: its data or role (rank 0 logs and saves).",
        "bytes",
    )
    slope = by("rank", "max", of_ranks(memory.HOST_SLOPE))
    return panel.with_target(query(f"topk(16, {slope})", "rank {{rank}}"))


def host_slopes() -> Any:
    panel = bars(
        "Fastest growing ranks, per step",
        "Growth of anonymous memory per step now. Red: divide the host's free memory by it, that "
        "many steps are left.",
        "bytes",
    )
    slope = by("rank", "max", recent(of_ranks(memory.HOST_SLOPE)))
    panel.with_target(instant(f"sort_desc(topk(8, {slope}))", "rank {{rank}}"))
    steps = limits(TEAL, (512 * 1024, YELLOW), (2 * 1024 * 1024, RED))
    return panel.min(0).color_scheme(by_threshold()).thresholds(steps)


def host_heatmap() -> Any:
    return rank_heatmap(
        "Anonymous memory: a row for each rank",
        "A row that is brighter than the others holds more; a row that brightens from left to "
        "right leaks. One colour all over is normal.",
        "bytes",
        by("rank", "max", of_ranks(memory.HOST_ANONYMOUS)),
        ("Inferno", False),
        (0, None),
    )


def over_devices(aggregation: str, metric: Metric) -> str:
    return f"{aggregation}({by(DEVICE, 'max', of_ranks(metric))})"


def allocator() -> Any:
    panel = lines(
        "Allocated and reserved, the fullest device",
        "Allocated swings with the stages; reserved follows its peaks. Far below the limit is "
        "normal. Reserved far above allocated is the gap below.",
        "bytes",
    )
    for ref, name, metric, color in (
        ("A", "limit", memory.GPU_LIMIT, RED),
        ("B", "reserved", memory.GPU_RESERVED, ORANGE),
        ("C", "allocated", memory.GPU_ALLOCATED, BLUE),
    ):
        aggregation = "min" if metric is memory.GPU_LIMIT else "max"
        panel.with_target(query(over_devices(aggregation, metric), name, ref))
        panel.override_by_name(name, colored(color))
    panel.no_value(NO_DEVICE)
    return panel.override_by_name("limit", dashed()).min(0)


def stage_peaks() -> Any:
    panel = lines(
        "Highest allocated memory by stage",
        "Of all devices, since the guest started, sampled about once a second: a lower bound. The "
        "stage nearest to the limit is the one to make smaller; a stair that climbs is a leak in "
        "that stage.",
        "bytes",
    )
    peaks = by("stage", "max", of_ranks(memory.GPU_STAGE_PEAK))
    panel.with_target(query(peaks, "{{stage}}"))
    panel.with_target(query(over_devices("min", memory.GPU_LIMIT), "limit", "B"))
    paint(panel.no_value(NO_DEVICE).fill_opacity(0), STAGES)
    return panel.override_by_name("limit", [*dashed(), *colored(RED)]).min(0)


def reserved_heatmap() -> Any:
    reserved = by("rank", "max", of_ranks(memory.GPU_RESERVED))
    return rank_heatmap(
        "Reserved, of the limit, each rank",
        "Bright rows are nearly full. Ranks alike are normal; one bright row holds more than its "
        "share: uneven sharding, a first or last pipeline stage, or a leak.",
        "percentunit",
        f"{reserved} / {by('rank', 'max', of_ranks(memory.GPU_LIMIT))}",
        ("Inferno", False),
        (0, 1),
    )


def fragmentation() -> Any:
    panel = lines(
        "Fragmentation: reserved but not allocated",
        "Share of reserved memory without a tensor. High right after a peak is normal; high while "
        "retries count up is fragmentation: expandable_segments:True, or empty the cache between "
        "rollout and update.",
        "percentunit",
    )
    for ref, name, aggregation in (("A", "highest", "max"), ("B", "lowest", "min")):
        panel.with_target(query(over_devices(aggregation, memory.GPU_FRAGMENTATION), name, ref))
    panel.no_value(NO_DEVICE)
    return panel.min(0).max(1)


def gap() -> Any:
    panel = lines(
        "Gap: reserved minus allocated",
        "Bytes that the allocator has reserved and no tensor uses, largest over the devices. The "
        "rollout engine, which shares the device, cannot use them.",
        "bytes",
    )
    both = (by(DEVICE, "max", of_ranks(m)) for m in (memory.GPU_RESERVED, memory.GPU_ALLOCATED))
    panel.no_value(NO_DEVICE)
    return panel.with_target(query(f"max({' - '.join(both)})", "gap")).min(0)


def held() -> Any:
    panel = lines(
        "Held before and after on- and offloading",
        "The rank with most, when states last came to a device (start) or went off it (end). Solid "
        "is allocated, dashed reserved. After 'end/offload' both should be low: allocated is "
        "tensors that the job still refers to, reserved alone is a cache that was not emptied.",
        "bytes",
    )
    for ref, what in (("A", "allocated"), ("B", "reserved")):
        found = of_ranks(memory.HELD, what=what, device="!host")
        panel.with_target(query(by("point", "max", found), f"{{{{point}}}} {what}", ref))
    panel.override_by_regexp(".* reserved", dashed())
    return panel.min(0).no_value("nobody offloads")


def host_by_stage() -> Any:
    panel = bars(
        "Resident host memory by stage",
        "The rank with most, when it was last seen in the stage, pages of files included. What "
        "goes off a device comes here: a host that is full after offloading ends the job.",
        "bytes",
    )
    resident = by("stage", "max", recent(of_ranks(memory.HOST_STAGE_RESIDENT)))
    panel.with_target(instant(resident, "{{stage}}")).min(0)
    return panel.color_scheme(fixed(BLUE))


def refused_by_stage() -> Any:
    panel = bars(
        "Retries and OOMs by stage",
        "Since the processes began, all ranks. 0 is normal. The stage is the one to make smaller.",
        "none",
    )
    for ref, word, metric in (
        ("A", "retries", memory.GPU_STAGE_RETRIES),
        ("B", "OOM", memory.GPU_STAGE_OOMS),
    ):
        counted = by("stage", "sum", recent(of_ranks(metric)))
        panel.with_target(instant(counted, f"{{{{stage}}}} {word}", ref))
    return panel.min(0).no_value("none")


def kv_cache() -> Any:
    panel = tiles(
        "Fullest KV cache",
        "Of all rollout engines, as they report it. At 100 % requests wait or are computed "
        "again. Each one is on the pipeline board.",
        "percentunit",
    )
    usage = by_name()[f"{PREFIX}kv_cache_usage_ratio"]
    none = f"(0 * count({recent(of_ranks(memory.HOST_ANONYMOUS))}) - 1)"
    panel.with_target(instant(f"max({recent(of_run(usage))}) or {none}", "in use"))
    panel.text_mode(cm.BigValueTextMode.VALUE).mappings([values(("-1", "no engine", GREY))])
    steps = limits(GREY, (0, TEAL), (0.9, YELLOW), (0.99, RED))
    return panel.color_scheme(by_threshold()).thresholds(steps).decimals(0)


def communication() -> Any:
    panel = tiles(
        "Communication buffers",
        "An estimate, of the rank with most: what its driver says that it has, less its allocator "
        "and its context. More than a tenth of the device: fewer groups, or smaller buffers "
        "(NCCL_BUFFSIZE).",
        "bytes",
    )
    text = f"max({recent(of_ranks(memory.GPU_COMMUNICATION))}) or {absent(memory.GPU_LIMIT)}"
    panel.with_target(instant(text, "estimated")).no_value("not reported")
    panel.text_mode(cm.BigValueTextMode.VALUE).mappings([values(("-1", NO_DEVICE, GREY))])
    return panel.color_scheme(by_threshold()).thresholds(limits(GREY, (0, TEAL)))


def kv_cache_lines() -> Any:
    panel = lines(
        "KV cache of each replica, and its peak",
        "Share in use as the engine reports it; dashed: the largest share since it was first read. "
        "A peak far below 100 % is memory that the engine could give up. At 100 % requests wait or "
        "are computed again.",
        "percentunit",
    )
    for ref, metric, words in (
        ("A", by_name()[f"{PREFIX}kv_cache_usage_ratio"], "in use"),
        ("B", KV_CACHE_PEAK, "peak"),
    ):
        used = by("replica, dp_rank", "max", of_run(metric))
        panel.with_target(query(used, f"{words} {{{{replica}}}} {{{{dp_rank}}}}", ref))
    panel.override_by_regexp("peak .*", dashed())
    return panel.min(0).max(1).fill_opacity(0).no_value("no engine")


def activations() -> Any:
    panel = lines(
        "Activations by stage, an estimate",
        "Highest allocated memory of the stage, less the least that was allocated in any stage, "
        "which is weights and optimizer states. Of the device with most. It grows with the tokens "
        "of a micro-batch: make micro-batches smaller, or recompute activations.",
        "bytes",
    )
    peak = by(f"{DEVICE}, stage", "max", of_ranks(memory.GPU_STAGE_PEAK))
    least = by(DEVICE, "min", of_ranks(memory.GPU_STAGE_ALLOCATED))
    above = f"{peak} - on ({DEVICE}) group_left () {least}"
    panel.with_target(query(by("stage", "max", above), "{{stage}}"))
    return panel.min(0).fill_opacity(0).no_value(NO_DEVICE)


def communication_lines() -> Any:
    panel = lines(
        "Communication buffers over time, an estimate",
        "Of the rank with most: what the driver reports for the process, less its allocator and "
        "its context; dashed: the peak. It grows when process groups are created, then it is flat. "
        "More than a tenth of the device: fewer groups, or smaller buffers (NCCL_BUFFSIZE).",
        "bytes",
    )
    for ref, metric, words in (
        ("A", memory.GPU_COMMUNICATION, "now"),
        ("B", memory.GPU_COMMUNICATION_PEAK, "peak"),
    ):
        panel.with_target(query(f"max({by('rank', 'max', of_ranks(metric))})", words, ref))
    panel.override_by_name("peak", dashed())
    return panel.min(0).fill_opacity(0).no_value(NO_DEVICE)


def retries() -> Any:
    panel = lines(
        "Allocations that had to empty the cache first",
        "Per minute, all devices. 0 is normal; each costs milliseconds and says that the device is "
        "full or fragmented.",
        "none",
    )
    counted = by(DEVICE, "sum", f"rate({of_ranks(memory.GPU_ALLOC_RETRIES)}[{SCRAPES}])")
    panel.no_value(NO_DEVICE)
    return panel.with_target(query(f"60 * sum({counted})", "retries")).min(0)


def heap() -> Any:
    panel = lines(
        "glibc's heap: allocated, retained, and released by malloc_trim",
        "Of the rank with the largest heap. Retained memory was freed and is still resident: "
        "normal up to some hundred MiB. Only the part that malloc_trim releases is available "
        "again. An allocated heap that grows is a leak.",
        "bytes",
    )
    parts = {
        "given out": memory.HEAP_USED,
        "kept": memory.HEAP_RETAINED,
        "malloc_trim would give back": memory.HEAP_TRIMMABLE,
    }
    for ref, (name, metric) in zip("ABC", parts.items(), strict=True):
        panel.with_target(query(by("role", "max", of_role(metric)), name, ref))
    return panel.min(0).fill_opacity(0)
