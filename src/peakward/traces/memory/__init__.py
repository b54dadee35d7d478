"""The analysis of torch's allocator snapshots."""
