"""The mark of the test that runs the whole demo."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "demo: runs the whole demo, 40 s")
