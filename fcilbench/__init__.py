"""A declarative benchmark suite for Federated Class-Incremental Learning (FCIL)."""

__version__ = "0.1.0"
