"""What the hypervisor of a virtual machine took of its CPU: how it is told, and what helps."""

from slowtok.detectors.case import Case, Phase
from slowtok.detectors.finding import Evidence
from slowtok.detectors.window import RunQueue, mean

MIN_STOLEN_RATIO = 0.05
"""Of the time that cores wanted to run; the usual mark for a neighbour that is felt. No published
source."""

OWN_CORES = (
    "The host of this virtual machine gives its cores to others. If it is of a burstable kind, its "
    "CPU credits are used up: wait for them, or turn unlimited credits on; else take an instance "
    "with dedicated cores, or another host. Nothing inside the machine gives them back."
)


def said_of_steal(phase: Phase, queue: RunQueue) -> str:
    """Return what was taken and what it cost, as a finding's summary."""
    return (
        f"The hypervisor withheld the CPU from this virtual machine for "
        f"{100 * queue.stolen_ratio:.0f} % of the time that its cores wanted to run; {phase} lost "
        f"about {{lost}}."
    )


def evidence_of_steal(case: Case, phase: Phase, queue: RunQueue) -> tuple[Evidence, ...]:
    """Return the numbers; none where too little was taken to be felt."""
    if queue.stolen_ratio < MIN_STOLEN_RATIO:
        return ()
    stolen_cores = mean(case.host_during(phase), lambda s: s.cpu_steal_cores) or 0.0
    return (
        Evidence(
            name="taken by the hypervisor (steal)",
            value=100 * queue.stolen_ratio,
            unit="%",
            limit=100 * MIN_STOLEN_RATIO,
        ),
        Evidence(name="cores taken by the hypervisor", value=stolen_cores, unit="cores"),
    )
