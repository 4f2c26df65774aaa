"""What all tests share."""

import os

import pytest
from hypothesis import settings

# Fixed seeds: a test that passes once passes always. Proofs look further.
settings.register_profile("default", derandomize=True, deadline=None)
settings.register_profile("proof", parent=settings.get_profile("default"), max_examples=500)
settings.load_profile("proof" if os.environ.get("HETPLAN_PROOF") else "default")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the long proofs unless HETPLAN_PROOF is set, as `make proof` does."""
    if os.environ.get("HETPLAN_PROOF"):
        return
    proofs = [item for item in items if item.get_closest_marker("proof")]
    if proofs:
        config.hook.pytest_deselected(items=proofs)
        items[:] = [item for item in items if not item.get_closest_marker("proof")]
