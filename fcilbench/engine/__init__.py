"""Tensors on a device: the flat model, the data, the local training step, precision and meters."""
