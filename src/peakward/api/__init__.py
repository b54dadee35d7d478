"""Python's front door, `import peakward`: typed values are checked once, then the rooms do the work.

The command line reads its words into the same values and calls the same functions.
"""
