"""Placement of a model that is not all on the GPU: how much, why, what it costs, what helps."""
