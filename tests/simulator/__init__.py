"""A simulator of machines that serve language models: physics first, readings from it.

It knows nothing of any detector: its laws come from published facts about memory, clocks, power,
heat and links, and what the instruments show of them, late and rounded, follows from those.
"""
