"""What an allocator snapshot of torch says about memory."""
