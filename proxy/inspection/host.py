"""The host: cores and quota, who else uses them, memory pressure, clock policy, battery."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from slowtok.detectors.analysis.cpu import programs
from slowtok.detectors.analysis.host_window import mean
from slowtok.detectors.case.machine import SAVING_PROFILES, HostSample
from slowtok.proxy.inspection.check import Check, State, gib, measured
from slowtok.proxy.inspection.seen import EngineSeen, Seen, computes_on_cpu

OTHERS_RATIO = 0.25
"""Share of the cores in other hands that decode on cores feels. Heuristic."""

FULL_RATIO = 0.75
"""The same where a GPU decodes, or nothing does yet. Heuristic."""

STEAL_RATIO = 0.05
"""Of the time that cores wanted to run, as in the detector of contention."""

LEAST_BUSY_CORES = 0.5
"""Below it the share of what is stolen is one of next to nothing. Heuristic."""

STALL_RATIO = 0.10
"""Time in which everything stood still for memory or disk. Heuristic."""

SWAP_IN_BYTES_PER_S = 1e6  # a page now and then is housekeeping; heuristic
THROTTLED_RATIO = 0.05  # of the periods, as in the detector of CPU quotas

DYNAMIC_DRIVERS = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")
"""Drivers whose governor `powersave` is the default and clocks up under load (kernel docs,
admin-guide/pm/intel_pstate and amd-pstate); with others it holds the lowest clock."""


def check_host(seen: Seen) -> Iterator[Check]:
    """Yield the host's limits."""
    yield from _cores(seen)
    for engine in seen.engines:
        if engine.is_here:
            yield from _quota(seen, engine)
    yield from _use(seen)
    yield from _memory_pressure(seen)
    yield from _clock_policy(seen)


def _check(
    name: str,
    state: State,
    said: str,
    advice: str | None = None,
    numbers: Mapping[str, float | None] | None = None,
) -> Check:
    return Check(
        area="host", name=name, state=state, said=said, advice=advice,
        numbers=measured(**(numbers or {})),
    )  # fmt: skip


def _cores(seen: Seen) -> Iterator[Check]:
    physical, logical = seen.device.cpu_physical_cores, seen.device.cpu_logical_cores
    if physical or logical:
        said = f"{physical or '?'} physical, {logical or '?'} logical"
        yield _check("cores", "ok", said, None, {"physical": physical, "logical": logical})


def _quota(seen: Seen, engine: EngineSeen) -> Iterator[Check]:
    quota, allowed = (
        _newest(engine.host, read)
        for read in (lambda s: s.server_quota_cores, lambda s: s.server_allowed_cores)
    )
    throttled = mean(engine.host, lambda s: s.server_throttled_ratio)
    logical = seen.device.cpu_logical_cores
    parts = (
        f"a CPU quota of {quota:.3g} cores" if quota is not None else None,
        f"{allowed:.0f} of {logical} cores allowed"
        if allowed and logical and allowed < logical
        else None,
        f"now stopped by it in {throttled:.0%} of its periods" if throttled else None,
    )
    said = ", ".join(filter(None, parts))
    if not said:
        return
    state: State = "ok"
    on_cpu = any(computes_on_cpu(seen, serving) for serving in engine.serving)
    if throttled is not None and throttled > THROTTLED_RATIO:
        state = "warn"
    elif on_cpu:
        state = "note"
    advice = (
        "raise the limit where it was set (docker --cpus or --cpuset-cpus, Kubernetes limits.cpu, "
        "systemd CPUQuota or AllowedCPUs, taskset)"
    )
    yield Check(
        area="host", name="cpu-limit", about=engine.name, state=state, said=said,
        advice=advice if state != "ok" else None,
        numbers=measured(quota_cores=quota, allowed_cores=allowed, throttled_ratio=throttled),
    )  # fmt: skip


def _newest(
    samples: Sequence[HostSample], read: Callable[[HostSample], float | None]
) -> float | None:
    return next((value for s in reversed(samples) if (value := read(s)) is not None), None)


def _use(seen: Seen) -> Iterator[Check]:
    cores = _newest(seen.host, lambda s: s.cpu_cores)
    busy, steal = (
        mean(seen.host, r) for r in (lambda s: s.cpu_busy_cores, lambda s: s.cpu_steal_cores)
    )
    if busy is None or not cores:
        return
    mine = [mean(e.host, lambda s: s.server_cpu_cores) or 0.0 for e in seen.engines if e.is_here]
    others = max(busy - sum(mine) - (steal or 0.0), 0.0)
    said = f"{busy:.1f} of {cores:.0f} cores busy, {others:.1f} of them by other programs"
    numbers = {"busy_cores": busy, "others_cores": others, "cores": cores, "steal_cores": steal}
    on_cpu = any(computes_on_cpu(seen, s) for e in seen.engines if e.is_here for s in e.serving)
    if steal is not None and busy >= LEAST_BUSY_CORES and steal / busy >= STEAL_RATIO:
        said += (
            f"; the hypervisor withholds {steal:.1f} cores, {steal / busy:.0%} of what programs "
            "want"
        )
        yield _check(
            "cpu-use",
            "warn" if on_cpu else "note",
            said,
            "either this instance has used up its CPU credits, or its host runs too many virtual "
            "machines: take an instance with cores of its own",
            numbers,
        )
    elif others / cores >= (OTHERS_RATIO if on_cpu else FULL_RATIO):
        if seen.others:
            said += f": {programs(seen.others)}"
        yield _check(
            "cpu-use",
            "note",
            said,
            "stop those programs, or lower their priority (renice -n 19 -p PID)",
            numbers,
        )
    else:
        yield _check("cpu-use", "ok", said, None, numbers)


def _memory_pressure(seen: Seen) -> Iterator[Check]:
    swap_in = mean(seen.host, lambda s: s.swap_in_bytes_per_s)
    memory, disk = (
        mean(seen.host, r)
        for r in (lambda s: s.psi_memory_full_ratio, lambda s: s.psi_io_full_ratio)
    )
    used = seen.swap_used_bytes
    numbers = {
        "swap_used_bytes": used, "swap_in_bytes_per_s": swap_in,
        "memory_stalled_ratio": memory, "disk_stalled_ratio": disk,
    }  # fmt: skip
    parts = (
        f"{gib(used)} of swap in use" if used else "no swap in use" if used == 0 else None,
        f"read back at {swap_in / 1e6:.1f} MB/s" if swap_in and swap_in > 0.05e6 else None,
        f"all programs waited for memory {memory:.0%} of the time" if memory is not None else None,
        f"for the disk {disk:.0%} of the time" if disk is not None else None,
    )
    said = ", ".join(filter(None, parts))
    if (swap_in or 0) > SWAP_IN_BYTES_PER_S or (memory or 0) >= STALL_RATIO:
        yield _check(
            "memory-pressure",
            "warn",
            said,
            "memory is short: end other programs, or take a smaller model or context",
            numbers,
        )
    elif (disk or 0) >= STALL_RATIO:
        advice = "find out which program keeps the disk busy (iotop shows it), and stop it"
        yield _check("memory-pressure", "note", said, advice, numbers)
    elif said:
        yield _check("memory-pressure", "ok", said, None, numbers)


def _clock_policy(seen: Seen) -> Iterator[Check]:
    device = seen.device
    if device.on_battery:
        yield _check("power", "warn", "the machine runs on battery", "plug it in")
    if device.power_profile in SAVING_PROFILES:
        said = f"the power profile is {device.power_profile}, which lowers the clocks"
        advice = "choose a faster one: powerprofilesctl set performance"
        yield _check("power-profile", "warn", said, advice)
    governor, driver = device.cpu_governor, seen.cpu_driver
    if governor is None:
        return
    said = f"governor {governor}{f' of {driver}' if driver else ''}"
    if seen.cpu_preference:
        said += f", preference {seen.cpu_preference}"
    dynamic = driver is None or driver.startswith(DYNAMIC_DRIVERS)
    if governor == "powersave" and not dynamic:
        advice = "choose another one: sudo cpupower frequency-set -g performance (or schedutil)"
        yield _check("governor", "warn", f"{said}: it keeps the cores at the lowest clock", advice)
    elif seen.cpu_preference == "power":
        said += ": the cores save power rather than clock up"
        advice = "choose another preference: sudo cpupower set --epp balance_performance"
        yield _check("governor", "note", said, advice)
    else:
        yield _check("governor", "ok", said)
