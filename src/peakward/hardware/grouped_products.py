"""Where torch multiplies all experts of a mixture in one kernel."""

PRECISIONS = ("bf16-mixed", "bf16")
CAPABILITIES = (9, 10)
"""Major compute capabilities."""
WIDTHS = 8
"""The kernel's rows come in pieces of 16 bytes: widths must divide by so many elements."""
