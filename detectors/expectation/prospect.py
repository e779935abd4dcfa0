"""The forecast for a model on a machine before it runs: whether it fits, and how fast it will be.

Strategy: the same arithmetic as for a request that was measured (`envelope`, `footprint`), asked
for what is not there yet. The rates are those of the setup as it is asked for: with layers in RAM
where it was told so, or where the GPUs cannot hold it. Every assumption is said, and widens the
band.
"""

from dataclasses import dataclass, replace

from slowtok.detectors.case.case import Envelope, Range
from slowtok.detectors.case.machine import DeviceFacts, GpuFacts
from slowtok.detectors.expectation.assumed_model import raised, widened
from slowtok.detectors.expectation.configured import Configured, configured
from slowtok.detectors.expectation.envelope import DRAFTS_HIGH_RATIO, expect
from slowtok.detectors.expectation.footprint import (
    GIB,
    MAX_OVERHEAD_BYTES,
    Footprint,
    footprint,
    kv_bytes,
    macos_gpu_bytes,
)
from slowtok.detectors.expectation.memory import (
    GIVEN_RAM,
    MEASURED_RAM,
    TYPICAL_RAM_BYTES_PER_S,
    TYPICAL_RAM_HIGH_RATIO,
    TYPICAL_RAM_LOW_RATIO,
    reference,
    spec_of,
)
from slowtok.detectors.expectation.published import Published
from slowtok.detectors.expectation.reads import NoBasis, reads_of

IN_RAM = "reference: the whole model in RAM"
RAM_NOTES = (GIVEN_RAM, MEASURED_RAM)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedRate:
    """Tokens per second; `ceiling` is what no run can pass. None is not known."""

    low: float | None = None
    expected: float | None = None
    high: float | None = None
    ceiling: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect:
    """What to expect. `room_bytes` is the memory of all GPUs, or the RAM where there is none.

    `fits` is None where it is too close to call, or sizes are not known. `gpu_layers` is the number
    that the rates are for, None where all are on GPUs or none has to be.
    """

    decode: ExpectedRate
    prefill: ExpectedRate
    footprint: Footprint | None
    room_bytes: int | None
    fits: bool | None
    gpu_layers: int | None
    envelope: Envelope
    basis: tuple[str, ...]


def prospect(facts: Published, *, reserved_tokens: int | None = None) -> Prospect:
    """Return what to expect at the facts' context; the KV cache holds that or more."""
    tokens = max(reserved_tokens or 0, facts.context_tokens)
    needed = footprint(facts.model, facts.server, context_tokens=tokens, gpus=_sharing(facts))
    room = room_bytes(facts.device)
    fits = None if needed is None or room is None else needed.fits(room)
    placed, notes = _placed(facts, tokens, fits=fits)
    told = expect(placed.model, placed.device, placed.server, placed.context_tokens)
    today = _today(placed)
    decode, more = _decode(placed, told, today)
    assumed = (each.note for each in facts.assumed)
    told_notes = (IN_RAM if note in RAM_NOTES else note for note in told.because)
    basis = (told.basis, *told_notes, *assumed, *notes, *more, *_share_of_memory(facts.device))
    return Prospect(
        decode=decode,
        prefill=_prefill(placed, told, split=bool(placed.device.gpus) and today is not None),
        footprint=needed,
        room_bytes=room,
        fits=fits,
        gpu_layers=placed.server.gpu_layers,
        envelope=told,
        basis=tuple(dict.fromkeys(line for line in basis if line)),
    )


def room_bytes(device: DeviceFacts) -> int | None:
    """Return the memory that all GPUs may use; that of the machine where there is none."""
    if not device.gpus:
        return device.ram_bytes
    rooms = [_room_of(gpu, device) for gpu in device.gpus]
    known = [room for room in rooms if room]
    return sum(known) if len(known) == len(rooms) else None


def _room_of(gpu: GpuFacts, device: DeviceFacts) -> int | None:
    """Return the memory of one GPU; on a Mac what macOS lets it have."""
    whole = _memory_of_mac(gpu, device)
    return gpu.total_bytes if whole is None else macos_gpu_bytes(whole)


def _memory_of_mac(gpu: GpuFacts, device: DeviceFacts) -> int | None:
    """Return the memory that an Apple GPU shares with its machine; None for others."""
    return gpu.total_bytes or device.ram_bytes if spec_of(gpu).maker == "apple" else None


def _share_of_memory(device: DeviceFacts) -> tuple[str, ...]:
    """Return what macOS lets the GPU have of the memory, and what gives it more."""
    whole = _memory_of_mac(device.gpus[0], device) if device.gpus else None
    if whole is None:
        return ()
    share = f"{macos_gpu_bytes(whole) / GIB:.3g} of {whole / GIB:.3g} GiB"
    note = f"macOS lets the GPU have {share}, recent versions more; "
    return (note + "sudo sysctl iogpu.wired_limit_mb=MB sets another limit",)


def _sharing(facts: Published) -> int:
    """Return how many GPUs have buffers of their own."""
    return max(len(facts.device.gpus or ()), 1)


def layers_that_fit(facts: Published, tokens: int) -> int | None:
    """Return how many layers fit on the GPUs for sure, buffers and a cache of so many tokens too.

    The output matrix counts as one layer more, as engines count it. None where sizes are not known.
    """
    model, room = facts.model, room_bytes(facts.device)
    kv = kv_bytes(model, facts.server, tokens)
    if not model.layers or model.file_bytes is None or kv is None or room is None:
        return None
    per_layer = (model.file_bytes + kv) / (model.layers + 1)
    fitting = int(max(room - MAX_OVERHEAD_BYTES * _sharing(facts), 0) / per_layer)
    return min(fitting, model.layers)


def _placed(facts: Published, tokens: int, *, fits: bool | None) -> tuple[Published, list[str]]:
    """Return the facts with the layers where they can lie, and what was changed."""
    layers, asked = facts.model.layers or 0, facts.server.gpu_layers
    if fits is not False or not facts.device.gpus or asked == 0 or facts.server.cpu_moe_layers:
        return facts, []
    most = layers_that_fit(facts, tokens)
    if most is None or (asked is not None and 0 <= asked <= most):
        return facts, []
    note = f"it does not fit: {most} of {layers} layers on GPUs, the rest in RAM"
    return replace(facts, server=replace(facts.server, gpu_layers=most)), [note]


def _today(facts: Published) -> Configured | None:
    """Return what the split gives; None where everything lies in one memory."""
    gpus, server = facts.device.gpus or (), facts.server
    try:
        reads = reads_of(facts.model, server, facts.context_tokens)
        memory = reference(facts.model, facts.device, server, gpus)
    except NoBasis:
        return None
    return configured(memory, reads, facts.model, facts.device, server, gpus=gpus, sequences=1.0)


def _decode(
    facts: Published, told: Envelope, today: Configured | None
) -> tuple[ExpectedRate, list[str]]:
    band, expected, ceiling = told.decode, told.expected_tps, told.ceiling_tps
    if band is not None and today is not None:
        band, expected, ceiling = today.band, today.expected_tps, today.ceiling_tps
        if facts.server.speculative:
            band = Range(low=band.low, high=DRAFTS_HIGH_RATIO * band.high)
    notes: list[str] = []
    uses_ram = not facts.device.gpus or facts.server.gpu_layers == 0 or _is_split(facts, today)
    if facts.ram_assumed and uses_ram:
        # RAM is slower than a GPU's memory, so that the ceiling of the GPU alone still holds.
        band, ceiling = _with_typical_ram(band), told.ceiling_tps if facts.device.gpus else None
        gb_per_s = TYPICAL_RAM_BYTES_PER_S / 1e9
        notes.append(
            f"the RAM's bandwidth is not known, {gb_per_s:.0f} GB/s assumed: a wide band; give it"
            " (--ram-bandwidth), or start slowtok serve once on that machine, which measures it"
        )
    if facts.server.speculative:
        ceiling = None
    ceiling, band = raised(ceiling, facts.assumed), widened(band, facts.assumed)
    if band is None:
        return ExpectedRate(ceiling=ceiling), notes
    high = band.high if ceiling is None else min(band.high, ceiling)  # RAM's is a wide guess
    return ExpectedRate(low=band.low, expected=expected, high=high, ceiling=ceiling), notes


def _is_split(facts: Published, today: Configured | None) -> bool:
    """Return True if some of it lies in RAM; layers on several GPUs are no such split."""
    server, layers = facts.server, facts.model.layers or 0
    in_ram = server.gpu_layers is not None and 0 <= server.gpu_layers < layers
    return today is not None and (
        in_ram or bool(server.cpu_moe_layers) or server.kv_on_gpu is False
    )


def _with_typical_ram(band: Range | None) -> Range | None:
    if band is None:
        return None
    return Range(low=band.low * TYPICAL_RAM_LOW_RATIO, high=band.high * TYPICAL_RAM_HIGH_RATIO)


def _prefill(facts: Published, told: Envelope, *, split: bool) -> ExpectedRate:
    """Return prefill's band; none for a split, of which none was measured."""
    band = widened(told.prefill, facts.assumed)
    if band is None or split:
        return ExpectedRate()
    return ExpectedRate(low=band.low, expected=told.expected_prefill_tps, high=band.high)
