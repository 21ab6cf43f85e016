import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.engine_fixtures", "tests.model_fixtures"]

# How long an example takes says how busy the machine is.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what starts fake engines: together they take longer than all other quick tests."""
    for item in items:
        if "fake_engine" in getattr(item, "fixturenames", ()):
            item.add_marker("fake")
