"""A firing case for each cause: the function of its name in one of the modules of cases."""

from collections.abc import Callable

from fakes import cases, clock_cases, engine_cases, link_cases, memory_cases, prompt_cases
from slowtok.detectors.case.case import Case
from slowtok.detectors.diagnosis.catalog import CATALOG, cause_of

MODULES = (cases, clock_cases, engine_cases, link_cases, memory_cases, prompt_cases)

FIRING: dict[str, Callable[[], Case]] = {
    cause_of(detector): getattr(module, name)
    for detector in CATALOG
    for module in MODULES
    if hasattr(module, name := cause_of(detector).replace("-", "_"))
}
