"""A firing case for each cause, put together from where they are made."""

from collections.abc import Callable

from fakes import cases, clock_cases, engine_cases, link_cases, memory_cases, prompt_cases
from slowtok.detectors.case.case import Case

FIRING: dict[str, Callable[[], Case]] = {
    **cases.FIRING,
    **memory_cases.FIRING,
    **clock_cases.FIRING,
    **engine_cases.FIRING,
    **link_cases.FIRING,
    **prompt_cases.FIRING,
}
